"""Is the cell still as fast? Output tokens/s at each concurrency of the matrix, against recorded baselines."""

from dataclasses import replace

import pytest

from fixtures.baselines import Gate
from fixtures.outcomes import not_judged, remark
from mtpgate.matrix.cell import Workload

pytestmark = [pytest.mark.mtp, pytest.mark.throughput]


def test_tokens_per_second(gate: Gate, workload: Workload, request: pytest.FixtureRequest) -> None:
    """Generates as many tokens/s as its baseline."""
    measurement = gate.measure(workload)
    insane = gate.insane(measurement) if measurement.void is None else None
    if insane is not None:
        measurement = replace(measurement, void=insane.text)
    verdict = gate.judge(measurement, workload)
    if insane is not None and not insane.own:
        not_judged(request.node, "insufficient", insane.text)
    assert measurement.void is None, insane.text if insane is not None else f"void, not judged: {measurement.void}"
    assert not verdict.red, verdict.text
    recorded = gate.record_if_asked(measurement, workload)
    if recorded is not None:
        remark(request.node, f"{verdict.text}\n{recorded}")
        return
    if verdict.state == "no_baseline":
        not_judged(request.node, "no_baseline", verdict.text)
    if not verdict.green:
        not_judged(request.node, "insufficient", verdict.text)
    remark(request.node, verdict.text)
