"""Logs with a known verdict, and logs that are no logs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from mtpgate.server.diagnose import diagnose_file, diagnose_lines

CASES = Path(__file__).parent / "cases"


@pytest.fixture(scope="module", params=sorted(path.stem for path in CASES.glob("*.json")))
def case(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any]]:
    expected = json.loads((CASES / f"{request.param}.json").read_text())
    return CASES / f"{request.param}.log", expected


def test_case_has_its_verdict(case: tuple[Path, dict[str, Any]]) -> None:
    log, expected = case
    diagnosis = diagnose_file(log, expected["context"])
    assert (diagnosis.phase, diagnosis.kind, diagnosis.rank) == (expected["phase"], expected["kind"], expected["rank"])
    assert diagnosis.advice.mem_fraction_static == expected["advice"]["mem_fraction_static"]


def test_evidence_is_in_the_log(case: tuple[Path, dict[str, Any]]) -> None:
    log, expected = case
    diagnosis = diagnose_file(log, expected["context"])
    # Not read_text(): it would end lines at the carriage returns of progress bars.
    lines = log.read_bytes().decode("utf-8", "replace").split("\n")
    assert diagnosis.evidence
    for item in diagnosis.evidence:
        assert item.text[:40] in lines[item.line - 1]


def test_numbers_of_the_failing_request_are_read(case: tuple[Path, dict[str, Any]]) -> None:
    log, expected = case
    numbers = diagnose_file(log, expected["context"]).numbers
    wanted = {
        key: expected["numbers"][key] for key in ("tried", "free", "total", "in_use") if key in expected["numbers"]
    }
    if not expected["kind"].startswith("oom"):
        wanted = {}
    assert {key: numbers[key] for key in wanted} == pytest.approx(wanted, abs=0.006)


def test_hint_below_a_failed_capture_is_no_cause() -> None:
    lines = [
        "[2026-07-21 13:41:38 TP1] Capture target verify CUDA graph begin. backend=full, avail mem=28.28 GB",
        "[2026-07-21 13:41:46 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "decode_cuda_graph_runner.py", line 363, in __init__',
        "Exception: Capture cuda graph failed: no kernel image is available for execution on the device",
        "Possible solutions:",
        "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
    ]
    diagnosis = diagnose_lines(lines)
    assert diagnosis.kind == "kernel_unsupported"
    assert diagnosis.advice.mem_fraction_static is None


def test_tuner_that_runs_out_of_memory_is_no_death() -> None:
    line = "autotuner.py - Skipping tactic due to failure while profiling: torch.OutOfMemoryError: CUDA out of memory."
    ready = "[2026-07-21 13:41:38] The server is fired up and ready to roll!"
    assert diagnose_lines([line, ready]).kind == "ok"


def test_empty_log_is_unknown() -> None:
    assert diagnose_lines([]).kind == "unknown"


@pytest.mark.parametrize("seed", range(20))
def test_broken_logs_never_raise(seed: int) -> None:
    generator = random.Random(seed)
    log = generator.choice(sorted(CASES.glob("*.log")))
    data = bytearray(log.read_bytes())
    for _ in range(200):
        data[generator.randrange(len(data))] = generator.randrange(256)
    lines = bytes(data[: generator.randrange(len(data))]).decode("utf-8", "replace").split("\n")
    generator.shuffle(lines)
    assert diagnose_lines(lines, {"exit_code": -9}).summary
