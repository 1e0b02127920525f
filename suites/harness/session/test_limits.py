"""The limits of a launch come from the matrix, over the defaults for its hardware."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpgate.gpu.inventory import Inventory
from mtpgate.matrix.probe import SGLangFacts
from mtpgate.plan import Prepared, Request, make_plan
from mtpgate.server.deadlines import CPU_SECONDS, CPU_SILENCE_SECONDS, Deadlines

MATRIX = Path(__file__).with_name("standin.yaml")


@pytest.fixture
def limits(tmp_path: Path) -> Deadlines:
    """Of a launch by a matrix for the CPU that sets two of them."""
    path = tmp_path / "limits.yaml"
    path.write_text(MATRIX.read_text() + "deadlines: {warmup: 77}\nsilence: {weight_load: 11.5}\n")
    plan = make_plan(Request(tmp_path, matrix=path), inventory=Inventory(gpus=()))
    facts = SGLangFacts("0.5.23", frozenset({"--mem-fraction-static"}), ("sglang",))
    cell = plan.reference
    prepared = Prepared(plan, facts, "some/model", {}, {cell.id: cell.arguments})
    return prepared.launch_spec(cell, port=1, log_path=tmp_path / "log").deadlines


def test_matrix_sets_deadline_and_silence_limit(limits: Deadlines) -> None:
    assert limits.limit("warmup") == 77.0
    assert limits.silence_limit("weight_load") == 11.5


def test_cpu_has_defaults_of_its_own(limits: Deadlines) -> None:
    assert limits.limit("preflight") == CPU_SECONDS["preflight"]
    assert limits.silence_limit("preflight") == CPU_SILENCE_SECONDS["preflight"]
