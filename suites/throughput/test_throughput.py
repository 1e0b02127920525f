"""Is the cell still as fast? Output tokens/s at each concurrency of the matrix, against recorded baselines."""

import pytest

from fixtures.baselines import Gate
from fixtures.confirming import confirmed
from fixtures.outcomes import not_judged, remark
from mtpgate.checks.token_counts import PROMPT_ID, disagreements
from mtpgate.errors import InfrastructureFault
from mtpgate.load.measure import run_repeat
from mtpgate.load.prompts import TokenPrompt, parity_prompts
from mtpgate.load.spoiled import machine_is_at_fault
from mtpgate.matrix.cell import Cell, Workload
from mtpgate.server.client import ServerClient

pytestmark = [pytest.mark.mtp, pytest.mark.throughput]

COUNTED_TOKENS = 16


def test_tokens_are_counted_alike(cell: Cell, client: ServerClient) -> None:
    """Counts tokens alike in the stream, in usage and in meta_info."""
    prompt = max(parity_prompts(), key=lambda prompt: len(prompt.text))
    tokens = client.tokenize(prompt.text)
    sampling = {"temperature": 0, "max_new_tokens": COUNTED_TOKENS, "ignore_eos": True}
    native = client.generate(text=prompt.text, sampling_params=sampling, return_logprob=True)
    openai = {"temperature": 0, "max_tokens": COUNTED_TOKENS, "ignore_eos": True}
    completion = client.complete({"model": "default", "prompt": prompt.text, **openai})
    asked = TokenPrompt(PROMPT_ID, prompt.kind, tuple(tokens))
    (streamed,) = run_repeat(client.base_url, [asked], concurrency=1, output_tokens=COUNTED_TOKENS).records
    wrong = list(
        disagreements(
            asked=COUNTED_TOKENS,
            prompt_tokens=len(tokens),
            streamed=streamed,
            native=native,
            completion=completion,
        )
    )
    assert not wrong, f"{cell.id}: tokens are not counted alike: " + "\n".join(wrong)


def test_tokens_per_second(gate: Gate, workload: Workload, request: pytest.FixtureRequest) -> None:
    """Generates as many tokens/s as its baseline."""
    judged = confirmed(gate, workload, request.config)
    measurement, insane, verdict = judged.measurement, judged.insane, judged.verdict
    if verdict.state == "unstable" and not (insane is not None and insane.own):
        not_judged(request.node, "unstable", verdict.text)
    if insane is not None and not insane.own:
        not_judged(request.node, "insufficient", insane.text)
    if machine_is_at_fault(measurement):
        raise InfrastructureFault(verdict.text)
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
