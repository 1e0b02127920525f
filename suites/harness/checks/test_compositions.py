"""Each cell is asked in the batches that its graphs make interesting, and the reference in all of them."""

from __future__ import annotations

import pytest

from mtpgate.checks.compositions import (
    all_compositions,
    batch_prompts,
    chunked_composition,
    compositions_of,
    graph_batch_limit,
    long_tokens,
)
from mtpgate.load.prompts import Prompt, parity_prompts
from mtpgate.matrix.cell import Cell


def cell(*, gpus: int = 0, **arguments: str | int | float | bool) -> Cell:
    return Cell("a-cell", arguments, gpus=gpus)


def sizes(asked: Cell, prompts: int = 16) -> dict[str, int]:
    return {composition.name: composition.size for composition in compositions_of(asked, prompts)}


@pytest.mark.parametrize(
    ("asked", "limit"),
    [
        (cell(), None),
        (cell(gpus=4, cuda_graph_max_bs=32), 32),
        (cell(gpus=4, cuda_graph_max_bs=32, disable_cuda_graph=True), None),
        (cell(torch_compile_max_bs=16), None),
        (cell(torch_compile_max_bs=16, enable_torch_compile=True), 16),
        (cell(gpus=4, cuda_graph_max_bs="auto"), None),
    ],
)
def test_the_limit_is_the_largest_batch_that_is_captured(asked: Cell, limit: int | None) -> None:
    assert graph_batch_limit(asked) == limit


def test_without_graphs_each_prompt_is_asked_alone_and_all_together() -> None:
    assert sizes(cell()) == {"single": 1, "batch": 16}


def test_batches_lie_at_the_limit_and_on_either_side() -> None:
    assert sizes(cell(gpus=1, cuda_graph_max_bs=32)) == {
        "single": 1,
        "batch": 16,
        "batch-31": 31,
        "batch-32": 32,
        "batch-33": 33,
    }
    # The batch of all prompts is the one at the limit.
    assert sizes(cell(gpus=1, cuda_graph_max_bs=16)) == {"single": 1, "batch": 16, "batch-15": 15, "batch-17": 17}


def test_with_another_number_of_prompts_there_is_a_batch_of_sixteen_too() -> None:
    assert sizes(cell(), prompts=3) == {"single": 1, "batch": 3, "batch-16": 16}


@pytest.mark.parametrize(("limit", "asked"), [(1, ["batch-2"]), (64, ["batch-63", "batch-64"]), (256, [])])
def test_batches_of_one_and_very_large_ones_are_left_out(limit: int, asked: list[str]) -> None:
    assert list(sizes(cell(gpus=1, cuda_graph_max_bs=limit))) == ["single", "batch", *asked]


def test_the_reference_is_asked_all_that_any_cell_is_asked() -> None:
    cells = [cell(gpus=1, cuda_graph_max_bs=32), cell(gpus=1, cuda_graph_max_bs=8)]
    asked = all_compositions(cells, 16)
    assert [one.size for one in asked] == [1, 16, 31, 32, 33, 7, 8, 9]
    assert all(set(compositions_of(one, 16)) <= set(asked) for one in cells)


def test_further_batches_are_of_the_longest_prompt_the_shorter_half_and_others() -> None:
    prompts = parity_prompts()
    (asked,) = (batch_prompts(one, prompts) for one in compositions_of(cell(), 3) if one.size == 16)
    lengths = [len(prompt.text) for prompt in asked]
    assert len({prompt.id for prompt in asked}) == 16
    assert lengths[0] == max(len(prompt.text) for prompt in prompts)
    assert lengths[1:9] == sorted(len(prompt.text) for prompt in prompts)[:8]
    assert not {prompt.id for prompt in asked[9:]} & {prompt.id for prompt in prompts}


@pytest.mark.parametrize(
    ("longest", "info", "tokens"),
    [
        (311, {"chunked_prefill_size": 8192, "context_length": 32768}, 10241),
        (311, {"chunked_prefill_size": 8192}, 10241),
        (311, {"chunked_prefill_size": 128, "context_length": 512}, None),  # It is chunked already.
        (311, {"chunked_prefill_size": 8192, "context_length": 8192}, None),
        (311, {"chunked_prefill_size": 65536}, None),
        (311, {"chunked_prefill_size": -1}, None),
        (311, {}, None),
    ],
)
def test_a_long_prompt_is_made_where_none_would_be_chunked(longest: int, info: dict[str, int], tokens: int) -> None:
    assert long_tokens(longest, info) == tokens


def test_the_long_prompt_has_short_company() -> None:
    long = Prompt("long-chunked", "long", "x" * 5000)
    asked = batch_prompts(chunked_composition(), parity_prompts(), long)
    assert [len(prompt.text) for prompt in asked] == [5000, 1, 4, 7]


@pytest.mark.parametrize("prompts", [1, 2, 40])
def test_a_batch_has_its_size_whatever_the_number_of_prompts(prompts: int) -> None:
    own = tuple(Prompt(f"own-{number}", "own", "x" * (number + 1)) for number in range(prompts))
    for one in compositions_of(cell(gpus=1, cuda_graph_max_bs=8), prompts):
        asked = batch_prompts(one, own)
        assert len({prompt.id for prompt in asked}) == len(asked) == (prompts if one.name == "single" else one.size)
