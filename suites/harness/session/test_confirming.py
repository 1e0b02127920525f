"""A breach is measured again on a fresh server: both launches count, and both are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mtpgate.judge import history
from mtpgate.report.page import render

pytestmark = pytest.mark.slow

CELL = "eagle-s1-k1-d2"
ONLY = ("-m", "throughput", "--cell", CELL)
FAST = {"tokens_per_second": 200.0}
SLOW = {"tokens_per_second": 30.0}


def first_launch(suite: Any, **different: object) -> dict[str, object]:
    return {"file": str(suite.folder / "launched"), **different}


@pytest.fixture
def recorded(suite: Any) -> Any:
    """The suite with one accepted launch of the cell; nothing was launched twice for that."""
    ended = suite.run(*ONLY, "--record-baselines", behaviour=FAST)
    assert ended.code == 0, ended.output
    assert not (ended.out / "cells" / CELL / "server-2.log").exists()
    # Repeats on a busy machine spread so much that the bound would be anywhere; what follows is not about that.
    accepted = suite.folder / "baselines" / "standin" / f"{CELL}.jsonl"
    lines = [json.loads(line) for line in accepted.read_text().splitlines()]
    steady = [line | {"repeats": [line["tokens_per_second"]] * 9} for line in lines]
    accepted.write_text("".join(json.dumps(line) + "\n" for line in steady))
    return suite


def page(out: Path) -> str:
    return render(out).read_text()


def past(suite: Any) -> list[tuple[str, int, str | None]]:
    entries = history.read(suite.folder / "baselines", "standin", CELL)
    return [(entry.key.workload.split()[0], entry.launch, entry.verdict) for entry in entries]


def test_a_server_that_is_slow_in_both_launches_is_red_and_was_launched_once_more(recorded: Any) -> None:
    ended = recorded.run(*ONLY, behaviour=SLOW)
    assert ended.code == 1, ended.output
    (row,) = ended.run.cells
    assert f"mtpgate: {CELL}: launched again to confirm a breach at C1, C4" in ended.output
    failed = [record for record in row.checks if record.state == "failed"]
    assert len(failed) == 2
    for record in failed:
        assert "regression" in record.message.splitlines()[0]
        assert "confirmed by a relaunch; the first launch was " in record.message
    (relaunch,) = row.launch.relaunches
    assert (relaunch.number, relaunch.why) == (2, "to confirm a breach at C1, C4")
    logs = sorted(path.name for path in (ended.out / row.folder).glob("server*.log"))
    assert logs == ["server-2.log", "server.log"]
    assert past(recorded)[2:] == [
        ("C1", 1, "breach"),
        ("C4", 1, "breach"),
        ("C1", 2, "regression"),
        ("C4", 2, "regression"),
    ]
    text = page(ended.out)
    assert "Launch 2: to confirm a breach at C1, C4; ready after" in text and "server-2.log" in text
    assert "relaunched; the first launch: " in text


def test_a_server_that_is_slow_in_its_first_launch_only_is_unstable(recorded: Any) -> None:
    ended = recorded.run(*ONLY, behaviour={**FAST, "first_launch": first_launch(recorded, **SLOW)})
    assert ended.code == 0, ended.output
    record = ended.check(CELL, "throughput")
    assert record.state == "unstable"
    assert f"{CELL} C1: unstable: " in record.message and "neither red nor green" in record.message
    assert "1st launch: regression: " in record.message and "2nd launch: " in record.message
    assert "NOT JUDGED" in ended.output and "unstab" in ended.output
    (row,) = ended.run.cells
    assert [record.launch for record in (*row.first_launches, *row.measurements)] == [1, 1, 2, 2]
    assert past(recorded)[2:] == [
        ("C1", 1, "breach"),
        ("C4", 1, "breach"),
        ("C1", 2, "unstable"),
        ("C4", 2, "unstable"),
    ]
    assert "unstable" in page(ended.out)


def test_a_relaunch_that_does_not_start_is_a_failure_that_says_what_it_was_for(recorded: Any) -> None:
    dies = {"die": {"phase": "weight_load", "how": "exception"}}
    ended = recorded.run(*ONLY, behaviour={**SLOW, **dies, "first_launch": first_launch(recorded, die=None)})
    assert ended.code == 1, ended.output
    record = ended.check(CELL, "throughput")
    assert record.state == "failed"
    assert record.message.startswith(f"launched again to confirm a breach at C1, C4, {CELL} did not start: ")
    (relaunch,) = ended.run.cells[0].launch.relaunches
    assert relaunch.state == "failed"


def test_without_a_baseline_nothing_is_launched_again(suite: Any) -> None:
    ended = suite.run(*ONLY, behaviour=SLOW)
    assert ended.check(CELL, "throughput").state == "no_baseline"
    assert not ended.run.cells[0].launch.relaunches
    assert past(suite) == [("C1", 1, "no_baseline"), ("C4", 1, "no_baseline")]


def test_a_check_that_fails_after_the_measurement_marks_it_in_the_history(suite: Any) -> None:
    ended = suite.run("-m", "throughput or serving", "--cell", CELL, behaviour={"orphans": 1})
    assert ended.check(CELL, "serving").state == "failed", ended.output
    file = history.path(suite.folder / "baselines", "standin", CELL)
    known = [json.loads(line)["failed_checks"] for line in file.read_text().splitlines()]
    assert known == [[], [], ["serving"], ["serving"]]
    assert not any(entry.sound for entry in history.read(suite.folder / "baselines", "standin", CELL))
