"""One launch at a time on each GPU, or on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtpgate.errors import InfrastructureFault, UsageError
from mtpgate.gpu.leases import CPU, Lease, Waiting, describe, lease, runtime_folder

ROOT = Path(__file__).parents[3]


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    """Another process that holds ``gpu0`` until its input ends."""
    code = (
        "import sys; from pathlib import Path; from mtpgate.gpu.leases import lease\n"
        "with lease(['gpu0'], 1, purpose='its cell', folder=Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_lease_takes_free_ones_and_gives_them_back(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    for _ in range(2):
        with lease(["gpu0", "gpu1", "gpu2"], 2, folder=tmp_path) as held:
            assert held.resources == ("gpu1", "gpu2")
            assert len(held.descriptors) == 2


def test_waiter_is_told_who_holds_it_and_gets_it_afterwards(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    seen: list[Waiting] = []

    def end_holder(waiting: Waiting) -> None:
        seen.append(waiting)
        holder.kill()
        holder.wait()

    with lease(["gpu0"], 1, folder=tmp_path, on_wait=end_holder, sleep=lambda _: None) as held:
        assert held.resources == ("gpu0",)
    assert seen[0].holder is not None
    assert seen[0].holder.pid == holder.pid
    assert f"gpu0 (held by pid {holder.pid} for its cell since " in describe(seen[0])


def test_waiting_ends_with_a_fault_that_names_the_holder(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    now = iter(range(0, 1000, 10))
    with (
        pytest.raises(InfrastructureFault, match=f"held by pid {holder.pid}"),
        lease(["gpu0"], 1, folder=tmp_path, timeout_seconds=25, clock=lambda: next(now), sleep=lambda _: None),
    ):
        pytest.fail("the lease was given twice")


def test_descriptor_in_another_process_keeps_the_lease(tmp_path: Path) -> None:
    with lease([CPU], 1, folder=tmp_path) as held:
        child = subprocess.Popen(
            [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"],
            stdin=subprocess.PIPE,
            pass_fds=held.descriptors,
        )
    assert is_held(tmp_path)
    child.communicate()
    assert not is_held(tmp_path)


def is_held(folder: Path) -> bool:
    class Busy(Exception):
        pass

    def busy(_: Waiting) -> None:
        raise Busy

    try:
        with lease([CPU], 1, folder=folder, on_wait=busy) as held:
            assert isinstance(held, Lease)
            return False
    except Busy:
        return True


def test_queue_is_free_while_a_lease_is_held(tmp_path: Path) -> None:
    with lease(["gpu0"], 1, folder=tmp_path), lease(["gpu1"], 1, folder=tmp_path) as second:
        assert second.resources == ("gpu1",)


def test_more_than_there_are_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="8 of 2 resources wanted"), lease(["0", "1"], 8, folder=tmp_path):
        pytest.fail("leased what is not there")


def test_runtime_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MTPGATE_RUNTIME", str(tmp_path / "locks"))
    assert runtime_folder() == tmp_path / "locks"
    assert (tmp_path / "locks").stat().st_mode & 0o777 == 0o700


def test_note_of_a_holder_that_cannot_be_read_is_no_error(tmp_path: Path) -> None:
    with lease([CPU], 1, folder=tmp_path):
        (tmp_path / "cpu.lock").write_text("{")
        assert is_held(tmp_path)
    with lease([CPU], 1, folder=tmp_path, purpose="x"):
        assert json.loads((tmp_path / "cpu.lock").read_text())["pid"] == os.getpid()
