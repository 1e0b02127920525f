"""The stacks of a launch's Python processes, and what is said where there are none."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mtpgate.server.stacks import Stacks, dump_stacks, find_py_spy, main_thread_frames

DUMP = """\
Process {pid}: sglang::scheduler
Python v3.11.7 (/usr/bin/python3.11)

Thread 0x7F12 (idle): "QueueFeeder (x)"
    wait (threading.py:324)
Thread 11 (active+gil): "MainThread"
    {frames}
"""
WAITING = "all_reduce (torch/distributed.py:10)\n    load (loader.py:7)"
ODD = "read (loader.py:99)\n    load (loader.py:7)"

MakePySpy = Callable[[str], Path]


@pytest.fixture
def make_py_spy(tmp_path: Path) -> MakePySpy:
    """``make_py_spy(code)``: a py-spy of Python; ``pid`` is the process that it is asked for."""

    def make(code: str) -> Path:
        path = tmp_path / "py-spy"
        path.write_text(
            f"#!{sys.executable} -IS\nimport sys, time\npid = int(sys.argv[sys.argv.index('--pid') + 1])\n{code}\n"
        )
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def sleepers() -> Iterator[list[int]]:
    """Three Python processes."""
    processes = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"]) for _ in range(3)]
    yield [process.pid for process in processes]
    for process in processes:
        process.kill()
        process.wait()


def test_main_thread_is_found_among_others() -> None:
    frames = main_thread_frames(DUMP.format(pid=1, frames=WAITING))
    assert frames == ("all_reduce (torch/distributed.py:10)", "load (loader.py:7)")


def test_first_thread_stands_in_where_none_has_a_name() -> None:
    assert main_thread_frames("Thread 5 (idle)\n    f (a.py:1)\nThread 6 (idle)\n    g (a.py:2)\n") == ("f (a.py:1)",)
    assert main_thread_frames("garbage") == ()


def test_all_stacks_are_kept_and_the_odd_one_is_told(
    make_py_spy: MakePySpy, sleepers: list[int], tmp_path: Path
) -> None:
    odd = sleepers[1]
    code = f"print({DUMP!r}.format(pid=pid, frames={ODD!r} if pid == {odd} else {WAITING!r}))"
    stacks = dump_stacks(sleepers, tmp_path / "stacks.txt", py_spy=make_py_spy(code))
    assert stacks.path is not None
    assert all(f"(pid {pid})" in stacks.path.read_text() for pid in sleepers)
    assert stacks.summary.endswith(f"(pid {odd}) is in read (loader.py:99) < load (loader.py:7)")


def test_missing_py_spy_is_said(tmp_path: Path) -> None:
    stacks = dump_stacks([os.getpid()], tmp_path / "stacks.txt", py_spy=None)
    assert stacks == Stacks(None, "no stacks: py-spy is not installed (pip install py-spy)")


def test_missing_permission_is_said(make_py_spy: MakePySpy, sleepers: list[int], tmp_path: Path) -> None:
    py_spy = make_py_spy("sys.exit('Permission Denied: Try running again with elevated permissions')")
    stacks = dump_stacks(sleepers, tmp_path / "stacks.txt", py_spy=py_spy)
    assert stacks.summary == (
        "no stacks: py-spy failed: Permission Denied: Try running again with elevated permissions "
        "(it needs root or the capability SYS_PTRACE)"
    )


def test_py_spy_that_cannot_be_executed_is_said(sleepers: list[int], tmp_path: Path) -> None:
    broken = tmp_path / "py-spy"
    broken.write_text("no program")
    broken.chmod(0o755)
    stacks = dump_stacks(sleepers, tmp_path / "stacks.txt", py_spy=broken)
    assert stacks.path is None
    assert stacks.summary.startswith("no stacks: ")


def test_processes_that_are_not_python_are_left_out(make_py_spy: MakePySpy, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        stacks = dump_stacks([process.pid, 2**22 + 1], tmp_path / "stacks.txt", py_spy=make_py_spy("print('x')"))
        process.kill()
    assert stacks.summary == "no stacks: no Python process of the launch can be seen from here"


def test_slow_dumps_are_ended_in_time_and_the_others_kept(
    make_py_spy: MakePySpy, sleepers: list[int], tmp_path: Path
) -> None:
    code = f"time.sleep(100 if pid != {sleepers[2]} else 0)\nprint({DUMP!r}.format(pid=pid, frames={ODD!r}))"
    began = time.monotonic()
    stacks = dump_stacks(sleepers, tmp_path / "stacks.txt", py_spy=make_py_spy(code), seconds=2.0)
    assert time.monotonic() - began < 5.0
    assert f"(pid {sleepers[2]}) is in read" in stacks.summary
    assert stacks.path is not None
    assert stacks.path.read_text().count("py-spy did not answer in time") == 2


def test_py_spy_is_looked_for_beside_the_servers_python(
    make_py_spy: MakePySpy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python3"
    python.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python3"))
    assert find_py_spy([str(python), "-m", "sglang"]) is None
    py_spy = make_py_spy("")
    assert find_py_spy([str(python), "-m", "sglang"]) == py_spy
    assert find_py_spy(["/no/such/python"]) is None


def test_real_py_spy_shows_where_a_process_waits(sleepers: list[int], tmp_path: Path) -> None:
    py_spy = find_py_spy([sys.executable])
    if py_spy is None:
        pytest.skip("py-spy is not installed")
    time.sleep(0.5)  # Until the interpreters are up.
    stacks = dump_stacks(sleepers, tmp_path / "stacks.txt", py_spy=py_spy)
    if "ermission" in stacks.summary:
        pytest.skip(stacks.summary)
    assert "is in <module> (<string>:1)" in stacks.summary
