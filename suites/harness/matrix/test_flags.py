"""Knobs are spelled with the flags that the SGLang under test has."""

from __future__ import annotations

import pytest

from mtpgate.errors import UsageError
from mtpgate.matrix.flags import flags_for

OLD = frozenset({"--cuda-graph-max-bs", "--disable-cuda-graph", "--enable-dp-attention", "--mem-fraction-static"})
NEW = frozenset(
    {
        "--cuda-graph-max-bs-decode",
        "--cuda-graph-max-bs-prefill",
        "--cuda-graph-backend-decode",
        "--cuda-graph-backend-prefill",
        "--attn-dp-size",
        "--mem-fraction-static",
        "--fp8-gemm-backend",
        "--tensor-parallel-size",
        "--chunked-prefill-size",
        "--served-model-name",
    }
)


@pytest.mark.parametrize(
    ("arguments", "known", "words"),
    [
        ({"mem_fraction_static": 0.6}, NEW, ["--mem-fraction-static", "0.6"]),
        ({"cuda_graph_max_bs": 16}, OLD, ["--cuda-graph-max-bs", "16"]),
        ({"cuda_graph_max_bs": 16}, NEW, ["--cuda-graph-max-bs-decode", "16"]),
        ({"cuda_graph_max_bs": 16}, OLD | NEW, ["--cuda-graph-max-bs-decode", "16"]),
        ({"disable_cuda_graph": True}, OLD, ["--disable-cuda-graph"]),
        (
            {"disable_cuda_graph": True},
            NEW | OLD,
            ["--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"],
        ),
        ({"disable_cuda_graph": False}, OLD, []),
        ({"enable_dp_attention": True}, OLD, ["--enable-dp-attention"]),
        ({"enable_dp_attention": True}, NEW, ["--attn-dp-size", "1"]),
        ({"fp8_gemm_runner_backend": "triton"}, NEW, ["--fp8-gemm-backend", "triton"]),
        ({"tp_size": 4}, NEW, ["--tensor-parallel-size", "4"]),
        ({"chunked_prefill_size": -1}, NEW, ["--chunked-prefill-size=-1"]),
        ({"served_model_name": ""}, NEW, ["--served-model-name="]),
    ],
)
def test_a_knob_becomes_the_flag_of_that_version(arguments: dict, known: frozenset[str], words: list[str]) -> None:
    assert flags_for(arguments, known, "x") == words


def test_a_flag_that_only_begins_like_a_known_one_does_not_fit() -> None:
    """argparse would take ``--mem-fraction`` for the only flag that begins so, until there are two."""
    with pytest.raises(UsageError):
        flags_for({"mem_fraction": 0.6}, NEW, "x")


def test_every_knob_without_a_flag_is_named_with_version_and_nearest_flags() -> None:
    with pytest.raises(UsageError) as raised:
        flags_for({"mem_fraction_statik": 0.6, "cuda_graph_max_bs": 16}, frozenset({"--mem-fraction-static"}), "0.9.9")
    first, second = str(raised.value).splitlines()
    assert first.startswith("mem_fraction_statik: SGLang 0.9.9 has no flag for it")
    assert "nearest flags it has: --mem-fraction-static" in first
    assert "tried --cuda-graph-max-bs-decode, --cuda-graph-max-bs" in second
