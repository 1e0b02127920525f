"""Nothing that a launch started outlives it: not after a stop, a Ctrl-C or a kill -9 of the suite."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from mtpgate.server.command import LaunchSpec
from mtpgate.server.launch import RunningServer
from mtpgate.server.process import ServerProcess
from mtpgate.server.strays import MARK, marked

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 15.0

MakeSpec = Callable[..., LaunchSpec]
Start = Callable[..., RunningServer]
StartLauncher = Callable[[LaunchSpec], tuple[subprocess.Popen[str], set[int]]]

LAUNCHER = textwrap.dedent(
    """
    import json, os, sys, time
    from pathlib import Path
    from mtpgate.server.command import LaunchSpec
    from mtpgate.server.launch import launch

    command, port, log = json.loads(sys.argv[1])
    with launch(LaunchSpec(cell_id="c", command=tuple(command), port=port, log_path=Path(log))) as server:
        print(*server.pids(), flush=True)
        while True:
            time.sleep(3600)
    """
)


def gone(pids: set[int]) -> bool:
    """Whether all ``pids`` are gone (or zombies) within the time allowed."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        if not any(runs(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture
def start_launcher() -> Iterator[StartLauncher]:
    """``start_launcher(spec)``: a Python process that launches ``spec`` and waits; it, and its server's processes."""
    launchers: list[subprocess.Popen[str]] = []

    def begin(spec: LaunchSpec) -> tuple[subprocess.Popen[str], set[int]]:
        # A shell without job control starts background jobs with SIGINT ignored, and that is inherited.
        launcher = subprocess.Popen(
            [
                "env",
                "--default-signal=INT",
                sys.executable,
                "-c",
                LAUNCHER,
                json.dumps([spec.command, spec.port, str(spec.log_path)]),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**spec.environment, "PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        launchers.append(launcher)
        assert launcher.stdout is not None
        return launcher, {int(pid) for pid in launcher.stdout.readline().split()}

    yield begin
    for launcher in launchers:
        launcher.kill()
        launcher.communicate()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_end_of_the_suite_leaves_no_server(
    make_spec: MakeSpec, start_launcher: StartLauncher, ending: signal.Signals
) -> None:
    launcher, family = start_launcher(make_spec(children=1, orphans=1))
    assert len(family) == 3
    os.kill(launcher.pid, ending)
    launcher.wait(PATIENCE_SECONDS)
    assert gone(family)


def test_kill_of_the_suite_ends_a_server_that_ignores_sigterm(
    make_spec: MakeSpec, start_launcher: StartLauncher
) -> None:
    launcher, family = start_launcher(make_spec(ignore_sigterm=True, children=1))
    launcher.kill()
    launcher.wait()
    assert gone(family)


def test_kill_of_the_guardian_ends_the_server(start: Start) -> None:
    server = start()
    server._process._guardian.kill()
    assert gone({server.pid})
    assert not server.alive()


def test_server_that_ignores_sigterm_is_killed_after_the_grace(start: Start) -> None:
    server = start(ignore_sigterm=True)
    report = server.stop(grace_seconds=0.3)
    assert report.exit_code == -signal.SIGKILL
    assert report.survivors
    assert gone({server.pid})


def test_daemons_of_a_server_are_found_and_killed(start: Start) -> None:
    server = start(children=0, orphans=2)
    orphans = server.pids() - {server.pid}
    assert len(orphans) == 2
    assert all(os.getsid(pid) != server.pid for pid in orphans)
    report = server.stop(grace_seconds=0.5)
    assert {int(survivor.split()[0]) for survivor in report.survivors} == orphans
    assert gone(set(orphans))


def test_daemons_are_killed_when_the_server_dies_by_itself(start: Start) -> None:
    server = start(children=0, orphans=1)
    family = server.pids()
    os.kill(server.pid, signal.SIGKILL)
    assert gone(set(family))
    assert server.exit_code is None or server.exit_code == -signal.SIGKILL
    assert not server.alive()
    assert server.exit_code == -signal.SIGKILL


def test_processes_outside_the_guardian_are_found_by_the_mark(start: Start) -> None:
    server = start()
    mark = psutil.Process(server.pid).environ()[MARK]
    # Stands for a process that left the guardian's tree: same mark, another parent.
    stranger = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(3600)"],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
    )
    assert stranger.stdout is not None
    stranger.stdout.readline()
    assert stranger.pid in {stray.pid for stray in marked(mark)}
    report = server.stop()
    assert gone({stranger.pid})
    stranger.stdout.close()
    assert any(survivor.startswith(f"{stranger.pid} ") for survivor in report.survivors)


def test_processes_of_other_launches_are_left_alone(start: Start) -> None:
    first, second = start(), start()
    first.stop()
    assert second.alive()


@pytest.mark.parametrize(
    ("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 11)", -11)]
)
def test_exit_code_is_the_commands_own(tmp_path: Path, code: str, expected: int) -> None:
    process = ServerProcess.start(
        (sys.executable, "-S", "-c", code), environment=dict(os.environ), log_path=tmp_path / "log"
    )
    assert process.wait(PATIENCE_SECONDS)
    assert process.exit_code == expected
    assert process.stop().exit_code == expected


def test_output_goes_to_the_log_and_the_environment_is_the_given_one(tmp_path: Path) -> None:
    code = "import os, sys; print(sorted(os.environ)); print('err', file=sys.stderr)"
    process = ServerProcess.start(
        (sys.executable, "-I", "-S", "-c", code),
        environment={"ONLY": "this", "LC_CTYPE": "C"},
        log_path=tmp_path / "log",
    )
    assert process.wait(PATIENCE_SECONDS)
    process.stop()
    assert sorted((tmp_path / "log").read_text().splitlines()) == [
        f"['LC_CTYPE', '{MARK}', 'ONLY']",
        "err",
    ]


def test_signals_are_not_ignored_in_the_server(tmp_path: Path) -> None:
    code = "import signal; print([signal.getsignal(s).name for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)])"
    process = ServerProcess.start(
        (sys.executable, "-S", "-c", code), environment=dict(os.environ), log_path=tmp_path / "log"
    )
    process.wait(PATIENCE_SECONDS)
    process.stop()
    assert (tmp_path / "log").read_text().strip() == "['SIG_DFL', 'SIG_DFL', 'SIG_DFL']"


def test_descriptors_that_are_passed_on_stay_open_as_long_as_the_server(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    process = ServerProcess.start(
        (sys.executable, "-S", "-c", "import time; time.sleep(3600)"),
        environment=dict(os.environ),
        log_path=tmp_path / "log",
        pass_fds=(write_end,),
    )
    os.close(write_end)
    os.set_blocking(read_end, False)
    with pytest.raises(BlockingIOError):
        os.read(read_end, 1)  # Somebody still holds the write end.
    process.stop()
    assert os.read(read_end, 1) == b""
    os.close(read_end)
