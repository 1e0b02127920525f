"""A cell with a change: the knob keeps the name that the cell has for it."""

from __future__ import annotations

import pytest

from mtpgate.matrix.cell import ArgumentValue
from mtpgate.trials import changed


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        ({"cuda_graph_max_bs": 32}, {"cuda_graph_max_bs": 16}),
        ({"cuda_graph_max_bs_decode": 32}, {"cuda_graph_max_bs_decode": 16}),
        ({"tp_size": 4}, {"tp_size": 4, "cuda_graph_max_bs": 16}),
    ],
)
def test_a_change_replaces_the_cells_own_value(
    arguments: dict[str, ArgumentValue], result: dict[str, ArgumentValue]
) -> None:
    before = dict(arguments)
    assert changed(arguments, {"cuda_graph_max_bs": 16}) == result
    assert arguments == before
