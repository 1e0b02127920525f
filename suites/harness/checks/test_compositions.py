"""Each cell is asked in the batches that its graphs make interesting, and the reference in all of them."""

from __future__ import annotations

import pytest

from mtpgate.checks.compositions import all_compositions, compositions_of, graph_batch_limit
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
