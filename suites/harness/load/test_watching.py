"""Conditions as they are recorded around a load, on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from mtpgate.gpu.watch import GpuSample
from mtpgate.load import canary_child, watching
from mtpgate.load.canary import CanaryRun, run_canary
from mtpgate.load.watching import Watch

START = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
BURN = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: pass"
LINE = "Decode batch, #running-req: 2, cpu graph: False, gen throughput (token/s): 13.09, #queue-req: 0\n"


def watch(tmp_path: Path, **changes: object) -> Watch:
    given = {"server_pids": frozenset, "log": tmp_path / "server.log", "interval_seconds": 0.05} | changes
    return Watch(**given)


def burner(seconds: float) -> subprocess.Popen[bytes]:
    # A child of this one would be taken for the suite's own, so one in between ends at once.
    return subprocess.Popen([sys.executable, "-c", START, BURN.format(seconds)], start_new_session=True)


def test_a_process_that_burns_beside_the_load_is_named_with_its_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Busier ones beside this test would leave no room for it.
    monkeypatch.setattr(watching, "KEPT_PROCESSES", 1000)
    with watch(tmp_path) as watched:
        burner(1.5).wait()
        time.sleep(1.0)
    found = watched.conditions
    named = [process for process in found.others if process.name.startswith("python -c")]
    # It has had at least a tenth of a core on any machine that is not hopelessly busy.
    assert named and named[0].cores > 0.1, found.others
    assert found.other_cores >= named[0].cores - 0.001
    assert len(found.host) >= 5
    assert all(0 <= sample.busy_share <= 1 for sample in found.host)


def test_the_servers_and_the_suites_own_processes_are_not_others(tmp_path: Path) -> None:
    own = subprocess.Popen([sys.executable, "-c", BURN.format(0.8)])
    with watch(tmp_path, server_pids=lambda: frozenset({own.pid})) as watched:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            pass
    own.wait()
    assert not {own.pid, os.getpid()} & {process.pid for process in watched.conditions.others}
    assert watched.conditions.server_pids == {own.pid}


def test_only_the_decode_lines_of_the_load_count(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LINE)
    with watch(tmp_path) as watched, log.open("a") as file:
        file.write(LINE * 2)
        file.flush()
    assert len(watched.conditions.decode.batches) == 2


def test_gpus_are_looked_at_from_the_begin_until_the_end(tmp_path: Path) -> None:
    looks: list[float] = []

    def look() -> tuple[GpuSample, ...]:
        looks.append(time.monotonic())
        return (GpuSample(len(looks)),)

    with watch(tmp_path, look=look) as watched:
        time.sleep(0.3)
    ended = len(looks)
    time.sleep(0.15)
    assert len(looks) == ended == len(watched.conditions.gpus) >= 2


def test_a_canary_is_run_before_and_after_but_never_during_the_load(tmp_path: Path) -> None:
    told = iter([CanaryRun({"CPU": {"x": 1.0}}), CanaryRun({"CPU": {"x": 2.0}}, "late")])
    events = []

    def canary(_: object) -> CanaryRun:
        events.append("canary")
        return next(told)

    with watch(tmp_path, canary=canary) as watched:
        events.append("load")
    assert events == ["canary", "load", "canary"]
    found = watched.conditions
    assert (found.canary_before["CPU"]["x"], found.canary_after["CPU"]["x"], found.canary_note) == (1.0, 2.0, "late")


def test_a_look_that_fails_is_raised_where_the_load_ends(tmp_path: Path) -> None:
    def look() -> tuple[GpuSample, ...]:
        raise RuntimeError("GPU is lost")

    with pytest.raises(RuntimeError, match="GPU is lost"), watch(tmp_path, look=look):
        time.sleep(0.01)


def test_a_load_that_fails_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="load"), watch(tmp_path, canary=lambda _: CanaryRun()):
        raise ValueError("load")


def test_the_cpu_canary_tells_both_figures() -> None:
    run = run_canary(Path(sys.executable))
    assert run.note == ""
    assert run.figures["CPU"].keys() == {"matmul_gflops", "copy_gib_s"}
    assert all(value > 0.01 for value in run.figures["CPU"].values())


def test_the_gpu_canary_tells_both_figures_of_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code on torch's CPU, as there may be no GPU: that it runs and what it names, not how fast."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(canary_child, "GPU_SIDE", 32)
    monkeypatch.setattr(canary_child, "GPU_COPY_BYTES", 1 << 16)
    monkeypatch.setattr(canary_child, "GPU_SECONDS", 0.001)
    names = ("ones", "empty_like", "matmul", "float16", "uint8")
    cuda = SimpleNamespace(device_count=lambda: 2, synchronize=lambda _: None)
    fake = SimpleNamespace(
        **{name: getattr(torch, name) for name in names}, cuda=cuda, device=lambda *_: torch.device("cpu")
    )
    found = canary_child.gpu(fake)
    assert found.keys() == {"GPU 0", "GPU 1"}
    assert found["GPU 1"].keys() == {"matmul_tflops", "copy_gib_s"}
    assert all(value > 0 for value in found["GPU 0"].values())


def test_figures_count_a_product_and_a_read_and_a_write() -> None:
    assert canary_child.figures(1000, 0.002, 1 << 30, 0.5, giga=1e12) == (1.0, 4.0)


def test_a_canary_is_not_run_where_memory_is_short() -> None:
    run = run_canary(Path("never started"), gpus=[GpuSample(3, free_gib=0.4)])
    assert run.note == "GPU 3 has 0.4 GiB free, it needs 2"


def test_gpus_are_called_by_nvmls_numbers(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("""#!/bin/sh\n[ "$2" = gpu ] && echo '{"GPU 0": {"x": 1}, "GPU 1": {"x": 2}}'\n""")
    python.chmod(0o755)
    run = run_canary(python, gpus=[GpuSample(6, free_gib=5.0), GpuSample(3, free_gib=5.0)])
    assert run == CanaryRun({"GPU 6": {"x": 1}, "GPU 3": {"x": 2}})


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 3", "it failed: exit code 3"),
        ("echo no torch >&2; exit 1", "it failed: no torch"),
        ("echo nothing", "it said no figures: 'nothing"),
        ("sleep 60", "it took more than 0.5 s"),
        ("", "cannot be started"),
    ],
)
def test_a_canary_that_fails_is_a_note(tmp_path: Path, script: str, words: str) -> None:
    python = tmp_path / "python"
    if script:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    assert words in run_canary(python, timeout_seconds=0.5).note
