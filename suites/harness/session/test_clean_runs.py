"""Clean runs are counted over several calls, and a red one is a false alarm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CELL = "eagle-s1-k1-d2"


def clean_runs(suite: Any, runs: int, behaviour: dict[str, object] | None = None, marks: str = "parity") -> Any:
    given = [part for part in suite.command() if part.startswith(("--server-command", "--known-bad", "--baselines"))]
    return subprocess.run(
        [
            sys.executable,
            str(ROOT / "tools" / "clean_runs.py"),
            f"--runs={runs}",
            f"--marks={marks}",
            f"--matrix={HERE / 'standin.yaml'}",
            f"--out={suite.folder / 'clean'}",
            *(f"--option={part}" for part in (*given, f"--cell={CELL}")),
        ],
        cwd=suite.folder,
        env=suite.environment(behaviour),
        capture_output=True,
        text=True,
        timeout=240,
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
