"""Is the cell still as fast? Output tokens/s at each concurrency of the matrix, against recorded baselines."""

import pytest

from fixtures.baselines import Gate
from fixtures.outcomes import not_judged, remark
from mtpgate.matrix.cell import Workload

pytestmark = [pytest.mark.mtp, pytest.mark.throughput]


def test_tokens_per_second(gate: Gate, workload: Workload, request: pytest.FixtureRequest) -> None:
    """Generates as many tokens/s as its baseline."""
    measurement = gate.measure(workload)
    verdict = gate.judge(measurement, workload)
    assert measurement.void is None, f"void, not judged: {measurement.void}"
    gate.require_sane(measurement)
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
