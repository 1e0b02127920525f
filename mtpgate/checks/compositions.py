"""In which batches a cell's answers are asked for: alone, all together, and around the largest batch that has a graph.

A fault of a padded graph shows in batches below the largest captured one, a fault of the way round it in batches above.
Answers are compared at equal composition only, so the reference is asked in all compositions that any cell needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mtpgate.matrix.cell import Cell

SINGLE, BATCH = "single", "batch"
SINGLE_TOKENS, BATCH_TOKENS = 32, 32
EDGE_TOKENS = 10
"""New tokens of the further batches: each step shows the batch's shape again, so that a few suffice."""
CONCURRENCY = 16
"""A batch of so many is asked of every cell."""
MOST_AT_ONCE = 64
"""Larger batches are not asked for; what that leaves out is said (:mod:`mtpgate.checks.reach`)."""


@dataclass(frozen=True)
class Composition:
    """``size`` requests in flight together, each of ``new_tokens``; ``single`` is one after the other."""

    name: str
    size: int
    new_tokens: int


def graph_batch_limit(cell: Cell) -> int | None:
    """The largest batch that the cell's arguments have captured; None if they name none or switch graphs off.

    The CPU engine captures with ``enable_torch_compile`` only, up to ``torch_compile_max_bs``.
    """
    arguments = cell.arguments
    if arguments.get("disable_cuda_graph"):
        return None
    if not cell.gpus and "torch_compile_max_bs" in arguments:
        return _whole(arguments["torch_compile_max_bs"]) if arguments.get("enable_torch_compile") else None
    return _whole(arguments.get("cuda_graph_max_bs"))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def compositions_of(cell: Cell, prompts: int) -> tuple[Composition, ...]:
    """The compositions of a cell that is asked ``prompts`` prompts: each alone, all together, and the further batches.

    Of a batch with fewer requests than prompts the first ones are asked, one with more is filled up.
    """
    limit = graph_batch_limit(cell)
    around = () if limit is None else (limit - 1, limit, limit + 1)
    sizes = sorted({CONCURRENCY, *around} - {prompts})
    return (
        Composition(SINGLE, 1, SINGLE_TOKENS),
        Composition(BATCH, prompts, BATCH_TOKENS),
        *(Composition(f"{BATCH}-{size}", size, EDGE_TOKENS) for size in sizes if 1 < size <= MOST_AT_ONCE),
    )


def all_compositions(cells: Iterable[Cell], prompts: int) -> tuple[Composition, ...]:
    """What the reference is asked: every composition of these cells, each once."""
    return tuple(dict.fromkeys(asked for cell in cells for asked in compositions_of(cell, prompts)))
