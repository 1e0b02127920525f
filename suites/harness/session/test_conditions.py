"""Runs on the stand-in: what is recorded around a load, what spoils it, and what a person accepts afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mtpgate.judge.baselines import BaselineStore

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
CELL = "eagle-s1-k1-d2"
SPEED = ("-m", "throughput", "--cell", CELL)


def raw(ended: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ended.out / "cells" / CELL / "raw.jsonl").read_text().splitlines()]


def baseline(suite: Any, *arguments: str) -> subprocess.CompletedProcess[str]:
    folders = [f"--run={suite.folder / 'out'}", f"--baselines={suite.folder / 'baselines'}"]
    command = [sys.executable, "-m", "mtpgate", "baseline", arguments[0], *folders, *arguments[1:]]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_load_is_kept_with_its_conditions_and_shown_with_them(suite: Any) -> None:
    ended = suite.run(*SPEED, "--canary")
    machine = raw(ended)[0]["conditions"]["machine"]
    assert machine["canary_before"].keys() == machine["canary_after"].keys() == {"CPU"}
    assert machine["host"] and not machine["gpus"] and not machine["canary_note"]
    record = ended.run.cells[0].measurements[0]
    assert record.condition_figures["canary_copy_gib_s"] > 0
    assert "busy" in record.conditions
    assert record.conditions in (ended.out / "index.html").read_text()


def test_a_server_that_retracts_is_measured_twice_and_fails(suite: Any) -> None:
    ended = suite.run(*SPEED, behaviour={"retractions": 1})
    record = ended.check(CELL, "throughput")
    assert (ended.code, record.state) == (1, "failed"), ended.output
    assert "disturbed: SGLang retracted requests" in record.message
    assert "measured twice" in record.message
    assert [load["workload"] for load in raw(ended)] == ["C1", "C1", "C4", "C4"]
    assert all(load["void"] for load in raw(ended))
    refused = baseline(suite, "accept", "--why=x", CELL)
    assert (refused.returncode, "void: disturbed" in refused.stderr) == (2, True)


def test_what_a_run_measured_can_be_accepted_once_and_compared(suite: Any) -> None:
    suite.run(*SPEED)
    taken = baseline(suite, "accept", "--why=first night", "--who=Ada", CELL)
    assert taken.returncode == 0, taken.stderr
    launches = BaselineStore(suite.folder / "baselines").launches("standin", CELL)
    assert [launch.key.workload[:2] for launch in launches] == ["C1", "C4"]
    assert all(launch.accept_counts for launch in launches)
    again = baseline(suite, "accept", "--why=again", CELL)
    assert (again.returncode, "accepted before by Ada" in again.stderr) == (2, True)
    assert "+0.0%" in baseline(suite, "diff").stdout


def test_what_a_run_recorded_itself_is_not_accepted_again(suite: Any) -> None:
    suite.run(*SPEED, "--record-baselines")
    refused = baseline(suite, "accept", "--why=again", CELL)
    assert (refused.returncode, "accepted before" in refused.stderr) == (2, True)
