"""In which batches a cell's answers are asked for: alone, all together, and around the largest batch that has a graph.

A fault of a padded graph shows in batches below the largest captured one, a fault of the way round it in batches above.
Answers are compared at equal composition only, so the reference is asked in all compositions that any cell needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtpgate.load.prompts import Prompt, filling_prompts
from mtpgate.matrix.cell import Cell

SINGLE, BATCH, CHUNKED = "single", "batch", "chunked"
SINGLE_TOKENS, BATCH_TOKENS, EDGE_TOKENS = 16, 32, 10
"""New tokens. Alone an answer costs most, and in the further batches each step shows the same shape again. On two cores
without a GPU this comes to about 15 s a cell, twice that of the reference."""
ROOM_TOKENS = 64
"""For the draft tokens of a verify step."""
CONCURRENCY = 16
"""A batch of so many is asked of every cell."""
LONG_WITH = 4
"""Requests of the batch of a long prompt that is made to be prefilled in chunks: itself, and short ones meanwhile."""
LONGEST_TOKENS = 20_000
"""Of such a prompt; servers with larger chunks are said not to be seen to chunk."""
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
    """Of a cell that is asked ``prompts`` prompts: each of them alone, all together, and the further batches."""
    limit = graph_batch_limit(cell)
    around = () if limit is None else (limit - 1, limit, limit + 1)
    sizes = sorted({CONCURRENCY, *around} - {prompts})
    return (
        Composition(SINGLE, 1, SINGLE_TOKENS),
        Composition(BATCH, prompts, BATCH_TOKENS),
        *(Composition(f"{BATCH}-{size}", size, EDGE_TOKENS) for size in sizes if 1 < size <= MOST_AT_ONCE),
    )


def long_tokens(longest: int, info: Mapping[str, Any]) -> int | None:
    """How long a prompt must be to be prefilled in chunks by this server; None if one of ``longest`` tokens is already,
    or if none can be (by ``/server_info``)."""
    size, context = _whole(info.get("chunked_prefill_size")), _whole(info.get("context_length"))
    if size is None or size <= 0 or longest > size:
        return None
    wanted = size + size // 4 + 1
    # Draft tokens and the answer need room as well.
    room = LONGEST_TOKENS if context is None else min(LONGEST_TOKENS, context - BATCH_TOKENS - ROOM_TOKENS)
    return wanted if wanted <= room else None


def chunked_composition() -> Composition:
    """A long prompt in flight with a few short ones."""
    return Composition(CHUNKED, LONG_WITH, SINGLE_TOKENS)


def batch_prompts(
    composition: Composition, prompts: Sequence[Prompt], long: Prompt | None = None
) -> tuple[Prompt, ...]:
    """What is asked in a composition: all ``prompts``, or in a further batch the longest, the shorter half, and others.

    The longest ones cost most, and have been asked twice already; one of them keeps the lengths mixed.
    """
    if composition.name in (SINGLE, BATCH):
        return tuple(prompts)
    *others, longest = sorted(prompts, key=lambda prompt: len(prompt.text))
    if composition.name == CHUNKED and long is not None:
        longest = long
    own = (longest, *others[: len(prompts) // 2])[: composition.size]
    return (*own, *filling_prompts(composition.size - len(own)))


def all_compositions(cells: Iterable[Cell], prompts: int) -> tuple[Composition, ...]:
    """What the reference is asked: every composition of these cells, each once."""
    return tuple(dict.fromkeys(asked for cell in cells for asked in compositions_of(cell, prompts)))
