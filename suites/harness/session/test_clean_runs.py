"""Clean runs are counted over several calls, and a red one is a false alarm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CELL = "eagle-s1-k1-d2"
TIMEOUT_SECONDS = 240
"""Against a run that hangs."""


def command(suite: Any, runs: int, marks: str = "parity") -> list[str]:
    given = [part for part in suite.command() if part.startswith(("--server-command", "--known-bad", "--baselines"))]
    return [
        sys.executable,
        str(ROOT / "tools" / "clean_runs.py"),
        f"--runs={runs}",
        f"--marks={marks}",
        f"--matrix={HERE / 'standin.yaml'}",
        f"--out={suite.folder / 'clean'}",
        *(f"--option={part}" for part in (*given, f"--cell={CELL}")),
    ]


def clean_runs(suite: Any, runs: int, behaviour: dict[str, object] | None = None, marks: str = "parity") -> Any:
    return subprocess.run(
        command(suite, runs, marks),
        cwd=suite.folder,
        env=suite.environment(behaviour),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def kept(suite: Any) -> dict[str, Any]:
    return json.loads((suite.folder / "clean" / "runs.json").read_text())


def test_a_second_call_goes_on_where_the_first_had_ended(suite: Any) -> None:
    first = clean_runs(suite, 1)
    assert first.returncode == 0, first.stdout + first.stderr
    begun = (suite.folder / "clean" / "run-001" / "run.json").stat().st_mtime_ns
    second = clean_runs(suite, 2, {"answers": "ties_speculative"})
    assert second.returncode == 0, second.stdout + second.stderr
    assert "2 of 2 runs clean" in second.stdout
    assert (suite.folder / "clean" / "run-001" / "run.json").stat().st_mtime_ns == begun
    equal, tied = kept(suite)["runs"]
    assert (equal["differing"], equal["near_ties"], equal["asked"]) == (0, 0, 3)
    assert tied["near_ties"] == tied["differing"] > 0
    assert tied["tolerance"] > 0


def test_a_red_run_is_a_false_alarm_and_named(suite: Any) -> None:
    ended = clean_runs(suite, 1, {"answers": "wrong_speculative"})
    assert ended.returncode == 1
    (run,) = kept(suite)["runs"]
    assert kept(suite)["clean"] == 0
    assert [name.rpartition("::")[2] for name in run["red"]] == [
        f"test_answers_as_the_reference[{CELL}]",
        f"test_answers_weighed_by_the_reference[{CELL}]",
    ]
    assert run["divergences"] == run["differing"] == 32


def test_runs_of_something_else_are_not_counted_in(suite: Any) -> None:
    folder = suite.folder / "clean"
    folder.mkdir()
    (folder / "runs.json").write_text(json.dumps({"asked": {"marks": "mtp"}, "runs": []}))
    ended = clean_runs(suite, 1)
    assert ended.returncode == 2
    assert "name another --out" in ended.stderr


def test_a_run_that_does_not_begin_is_no_clean_run(suite: Any) -> None:
    ended = clean_runs(suite, 1, marks="no_such_marker")
    assert ended.returncode == 2
    assert "run-001.log" in ended.stderr
    assert not (suite.folder / "clean" / "runs.json").exists()


def test_a_run_that_is_interrupted_stops_its_server_and_is_run_again(
    suite: Any, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    slow = subprocess.Popen(
        # A shell without job control starts background jobs with SIGINT ignored, and that is inherited.
        ["env", "--default-signal=INT", *command(suite, 1)],
        cwd=suite.folder,
        env=suite.environment({"tokens_per_second": 5}),
        start_new_session=True,
    )
    log = suite.folder / "clean" / "run-001" / "cells" / "nomtp" / "server.log"
    wait_until(lambda: log.exists() and b"fired up" in log.read_bytes(), "a server that is asked")
    os.killpg(slow.pid, signal.SIGINT)
    assert slow.wait(TIMEOUT_SECONDS) == 3
    assert not suite.processes()
    assert not (suite.folder / "clean" / "runs.json").exists()
    again = clean_runs(suite, 1)
    assert again.returncode == 0, again.stdout + again.stderr
