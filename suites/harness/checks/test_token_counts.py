"""Three askings of the same prompt count alike, or the odd one out is named."""

from __future__ import annotations

import pytest

from mtpgate.checks.token_counts import disagreements
from mtpgate.load.measurement import Arrival, RequestRecord

LENGTH = {"type": "length", "length": 4}
META = {"completion_tokens": 4, "prompt_tokens": 3, "finish_reason": LENGTH}
LOGPROBS = [[-0.5, token, None] for token in range(4)]


def said(*, stream: int = 4, usage: dict | None = None, reason: str = "length", **meta: object) -> list[str]:
    record = RequestRecord("counts", 0, 0.0, (Arrival(1.0, stream),), 1.0, 3, stream, "abcd", META)
    native = {
        "text": "abcd",
        "output_ids": [1, 2, 3, 4],
        "meta_info": META | {"output_token_logprobs": LOGPROBS} | meta,
    }
    counted = {"completion_tokens": 4, "prompt_tokens": 3, "total_tokens": 7} | (usage or {})
    completion = {"choices": [{"text": "abcd", "finish_reason": reason}], "usage": counted}
    return list(disagreements(asked=4, prompt_tokens=3, streamed=record, native=native, completion=completion))


def test_equal_counts_are_fine():
    assert said() == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"stream": 5}, "stream: the events count 5 tokens, 4 were asked for"),
        ({"stream": 5}, "stream: counts: token_count: the stream ended at 5 tokens, meta_info says 4"),
        ({"usage": {"completion_tokens": 3}}, "usage: completion_tokens is 3, expected 4"),
        ({"usage": {"prompt_tokens": 4}}, "usage: prompt_tokens is 4, expected 3"),
        ({"usage": {"total_tokens": 8}}, "usage: total_tokens is 8, expected 7"),
        ({"completion_tokens": 5}, "meta_info: completion_tokens is 5, 4 were asked for"),
        ({"prompt_tokens": 2}, "meta_info: prompt_tokens is 2, 3 were sent"),
        ({"output_token_logprobs": LOGPROBS[:3]}, "meta_info: 3 log-probabilities for 4 tokens"),
        ({"finish_reason": {"type": "stop"}}, "meta_info: counts: finish_reason: 'stop' instead of length"),
        ({"reason": "stop"}, "usage: finish_reason is 'stop' instead of 'length'"),
    ],
)
def test_the_odd_one_out_is_named(changed, words):
    assert words in said(**changed)


def test_logits_that_were_nan_are_found():
    found = said(output_token_logprobs=[[-0.5, 1, None], [None, 2, None], *LOGPROBS[2:]])
    assert found == ["meta_info: counts: nan: 1 of 4 output_token_logprobs are no finite numbers, the first at 1"]


def test_a_completion_without_usage_is_said():
    record = RequestRecord("counts", 0, 0.0, (Arrival(1.0, 4),), 1.0, 3, 4, "abcd", META)
    native = {"text": "abcd", "output_ids": [1, 2, 3, 4], "meta_info": META}
    (found,) = disagreements(asked=4, prompt_tokens=3, streamed=record, native=native, completion={"id": "x"})
    assert found.startswith("usage: missing in /v1/completions")
