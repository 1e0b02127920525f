"""What SGLang 0.5.23 rewrites and refuses, rule by rule, as read in its wheel."""

from __future__ import annotations

from typing import Any

import pytest

from mtpgate.matrix.rules import Setting, refusal, rewrite

PLAIN = Setting("sglang", None, 1)
DEEPSEEK_V4 = Setting("sglang", "DeepseekV4ForCausalLM", 1)
EMBEDDED = Setting("embedded", None, 1)


def eagle(steps: Any = 3, topk: Any = 1, drafts: Any = 4, **more: Any) -> dict[str, Any]:
    numbers = {
        "speculative_num_steps": steps,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": drafts,
    }
    given = {name: value for name, value in numbers.items() if value is not None}
    return {"speculative_algorithm": "EAGLE"} | given | more


@pytest.mark.parametrize(
    ("asked", "running"),
    [
        (eagle(3, 1, 8), eagle(3, 1, 4)),
        (eagle(3, 1, None), eagle(3, 1, 4)),
        (eagle(speculative_algorithm="NEXTN"), eagle()),
        (eagle(speculative_algorithm="nextn"), eagle()),
        (eagle(speculative_algorithm="eagle3"), eagle(speculative_algorithm="EAGLE3")),
        ({"speculative_num_steps": 3, "tp_size": 2}, {"tp_size": 2}),
    ],
)
def test_sglang_runs_it_as_something_else(asked: dict[str, Any], running: dict[str, Any]) -> None:
    assert rewrite(asked, PLAIN)[0] == running


@pytest.mark.parametrize("arguments", [eagle(), eagle(3, 2, 6), {}, {"tp_size": 2}])
def test_what_sglang_runs_as_it_stands_is_left_alone(arguments: dict[str, Any]) -> None:
    assert rewrite(arguments, PLAIN) == (arguments, [])


@pytest.mark.parametrize(
    ("arguments", "setting", "reason"),
    [
        (eagle(None, None, None), PLAIN, "SGLang would choose"),
        (eagle(None, 2, None), PLAIN, "num_steps is unset"),
        (eagle(3, 2, None), PLAIN, "speculative_num_draft_tokens must be set too"),
        (eagle(3, 2, 8), PLAIN, "num_draft_tokens 8 is more than num_steps * eagle_topk + 1 = 7"),
        (eagle(3, 2, 1), PLAIN, "leaves no token to draft"),
        (eagle("3", 1, 4), PLAIN, "must be a whole number"),
        (eagle(0, 1, 4), PLAIN, "must be a whole number"),
        (eagle(speculative_algorithm="NGRAM"), PLAIN, "only EAGLE, EAGLE3"),
        (eagle(3, 2, 6, page_size=64, attention_backend="flashmla"), PLAIN, "on flashinfer, fa3, triton only"),
        (eagle(3, 2, 6, attention_backend="flashmla"), PLAIN, "the page size above 1 that it forces"),
        (eagle(3, 2, 6, attention_backend="fa4", page_size=128), PLAIN, "with page_size 128"),
        (eagle(3, 2, 6, attention_backend="trtllm_mha"), PLAIN, "eagle_topk 1 only"),
        (eagle(3, 2, 6, decode_attention_backend="trtllm_mha"), PLAIN, "eagle_topk 1 only"),
        (eagle(attention_backend="torch_native"), PLAIN, "no speculative decoding on attention backend torch_native"),
        (eagle(attention_backend="flex_attention"), PLAIN, "no speculative decoding"),
        (eagle(3, 2, 6), DEEPSEEK_V4, "DeepSeek-V4 needs eagle_topk 1, not 2"),
        (eagle(None, None, None), DEEPSEEK_V4, "DeepSeek-V4 needs eagle_topk 1, not None"),
        (eagle(speculative_algorithm="EAGLE3"), DEEPSEEK_V4, "it takes EAGLE"),
        ({"kv_cache_dtype": "fp8_e5m2"}, DEEPSEEK_V4, "fp8_e4m3 or bfloat16"),
        (eagle(3, 2, 6, speculative_use_rejection_sampling=True), PLAIN, "rejection_sampling needs eagle_topk 1"),
        (
            eagle(speculative_algorithm="STANDALONE", speculative_use_rejection_sampling=True),
            PLAIN,
            "EAGLE and EAGLE3 only",
        ),
        (eagle(), Setting("sglang", None, 64), "above max_running_requests 48 (SGLang's default here)"),
        ({}, Setting("sglang", "DeepseekV4ForCausalLM", 300), "above max_running_requests 256"),
        ({"max_running_requests": 8}, Setting("sglang", None, 16), "above max_running_requests 8; set it"),
        ({"tp_size": 2}, EMBEDDED, "tp_size must be 1"),
        (eagle(speculative_algorithm="EAGLE3"), EMBEDDED, "EAGLE only"),
        (eagle(enable_torch_compile=True), EMBEDDED, "does not support speculation"),
    ],
)
def test_a_launch_that_cannot_be_is_refused_with_the_reason(
    arguments: dict[str, Any], setting: Setting, reason: str
) -> None:
    assert reason in (refusal(arguments, setting) or "")


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ({}, PLAIN),
        ({}, Setting("sglang", None, 300)),
        (eagle(3, 2, 7), PLAIN),
        (eagle(1, 1, 2), DEEPSEEK_V4),
        (eagle(), Setting("sglang", None, 48)),
        (eagle(), Setting("sglang", "DeepseekV4ForCausalLM", 256)),
        (eagle(max_running_requests=64), Setting("sglang", None, 64)),
        (eagle(3, 2, 6, page_size=64, attention_backend="fa3"), PLAIN),
        (eagle(3, 2, 6, page_size=1, attention_backend="fa4"), PLAIN),
        (eagle(attention_backend="trtllm_mha", page_size=64), PLAIN),
        ({"kv_cache_dtype": "bfloat16"}, DEEPSEEK_V4),
        (eagle(speculative_use_rejection_sampling=True), PLAIN),
        (eagle(3, 2, 6), EMBEDDED),
        ({"enable_torch_compile": True}, EMBEDDED),
    ],
)
def test_a_launch_that_can_be_is_not_refused(arguments: dict[str, Any], setting: Setting) -> None:
    assert refusal(arguments, setting) is None
