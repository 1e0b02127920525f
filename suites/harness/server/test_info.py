"""What was asked for against what the server runs."""

from __future__ import annotations

from typing import Any

import pytest

from mtpgate.server.info import compare_with_server_info

RUNS = {
    "tp_size": 4,
    "mem_fraction_static": 0.6,
    "attention_backend": "trtllm_mha",
    "speculative_algorithm": "EAGLE",
    "speculative_num_draft_tokens": 2,
    "disable_overlap_schedule": True,
    "cuda_graph_max_bs_decode": 16,
    "quantization": None,
}


@pytest.mark.parametrize(
    "asked",
    [
        {"tp_size": 4, "mem_fraction_static": 0.6},
        {"mem_fraction_static": 0.6 + 1e-9},
        {"attention_backend": "auto"},
        {"speculative_algorithm": "NEXTN"},
        {"speculative_algorithm": "eagle"},
        {"disable_overlap_schedule": True},
        {"cuda_graph_max_bs": 16},
        {"tp": 4},
        {},
    ],
)
def test_same_launch_has_no_difference(asked: dict[str, Any]) -> None:
    assert compare_with_server_info(asked, RUNS) == []


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"speculative_num_draft_tokens": 6}, "speculative_num_draft_tokens: asked for 6, the server runs 2"),
        ({"mem_fraction_static": 0.7}, "mem_fraction_static: asked for 0.7, the server runs 0.6"),
        ({"disable_overlap_schedule": False}, "disable_overlap_schedule: asked for False, the server runs True"),
        (
            {"attention_backend": "flashinfer"},
            "attention_backend: asked for 'flashinfer', the server runs 'trtllm_mha'",
        ),
        ({"cuda_graph_max_bs": 32}, "cuda_graph_max_bs: asked for 32, the server runs 16"),
        ({"quantization": "fp8"}, "quantization: asked for 'fp8', the server runs None"),
        ({"no_such_knob": 1}, "no_such_knob: asked for 1, not reported by /server_info"),
    ],
)
def test_difference_names_both_values(asked: dict[str, Any], text: str) -> None:
    assert [str(difference) for difference in compare_with_server_info(asked, RUNS)] == [text]
