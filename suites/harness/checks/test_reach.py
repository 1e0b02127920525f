"""What the answers could not have shown is said in words."""

from __future__ import annotations

from typing import Any

import pytest

from mtpgate.checks.answers import Answer, Answers
from mtpgate.checks.compositions import compositions_of
from mtpgate.checks.reach import Reach, reached
from mtpgate.matrix.cell import Cell

CPU = {"device": "cpu", "max_running_requests": 20, "chunked_prefill_size": 128}
GPU = {**CPU, "device": "cuda"}


def answers(name: str, *lengths: int, in_flight: int = 1, cached: int = 0) -> Answers:
    given = {
        f"prose-{number}": Answer(
            f"prose-{number}", (1,), "x", "length", 1, {"prompt_tokens": length, "cached_tokens": cached}
        )
        for number, length in enumerate(lengths)
    }
    return Answers(name, given, 8, in_flight)


def reach(info: dict[str, Any], *given: Answers, prompts: int = 3, **arguments: Any) -> Reach:
    asked = Cell("a-cell", arguments, gpus=int(info["device"] == "cuda"))
    return reached(asked, info, compositions_of(asked, prompts), {one.composition: one for one in given})


def words(*given: Any, **more: Any) -> str:
    return "; ".join(reach(*given, **more).notes)


def test_prompts_longer_than_a_chunk_are_counted() -> None:
    found = reach(CPU, answers("single", 5, 128, 129), answers("batch", 5, 128, 129, in_flight=3))
    assert (found.chunked, found.longest_prefill, found.chunks) == (1, 129, True)
    assert "1 prompts were prefilled in chunks (up to 129 tokens, chunked_prefill_size 128)" in found.notes


def test_tokens_of_the_prefix_cache_are_not_prefilled() -> None:
    found = reach(CPU, answers("single", 200, cached=100))
    assert not found.chunks
    assert "chunked prefill not seen: the longest prompt has 100 tokens, chunked_prefill_size is 128" in found.notes


@pytest.mark.parametrize(
    ("told", "why"), [(None, "the server does not tell its size"), (-1, "chunked_prefill_size is -1")]
)
def test_a_server_that_does_not_chunk_is_named(told: int | None, why: str) -> None:
    found = reach({**CPU, "chunked_prefill_size": told}, answers("single", 5000))
    assert found.notes[0] == f"chunked prefill not seen: {why}"


def test_a_batch_that_was_not_in_flight_together_is_named() -> None:
    said = words(CPU, answers("batch", 1, 2, 3, in_flight=3), answers("batch-16", *[1] * 16, in_flight=9))
    assert "3 requests were in flight together" in said
    assert "batch-16: only 9 of its 16 requests were in flight together" in said


def test_a_batch_above_the_running_requests_is_named() -> None:
    said = words({**GPU, "max_running_requests": 32}, answers("batch-33", 1, in_flight=33), cuda_graph_max_bs=32)
    assert "batch-33: the server runs 32 at once (max_running_requests), the others waited" in said


@pytest.mark.parametrize(
    ("info", "arguments", "said"),
    [
        (CPU, {}, "no graphs are captured"),
        (GPU, {"cuda_graph_max_bs": 16}, "batches around the graph batch limit of 16"),
        (GPU, {"cuda_graph_max_bs": 256}, "graph batch limit 256: batches above 64 are not asked for"),
        (GPU | {"cuda_graph_max_bs_decode": 80}, {}, "the matrix does not name it (cuda_graph_max_bs); it is 80"),
        (CPU | {"enable_torch_compile": True}, {"enable_torch_compile": True, "torch_compile_max_bs": 8}, "limit of 8"),
    ],
)
def test_the_end_of_the_graphs_is_named(info: dict[str, Any], arguments: dict[str, Any], said: str) -> None:
    assert said in words(info, answers("single", 1), **arguments)
