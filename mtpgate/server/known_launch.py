"""What a healthy launch can say of another cell's memory, and how close the two are."""

from __future__ import annotations

from dataclasses import dataclass

from mtpgate.matrix.cell import ArgumentValue, Cell, Speculation
from mtpgate.matrix.vocabulary import Phase
from mtpgate.server.budget import Budget, RankBudget

SAME = (
    *("tp_size", "dp_size", "pp_size", "ep_size", "enable_dp_attention"),
    *("dtype", "quantization", "kv_cache_dtype"),
    *("disable_cuda_graph", "enable_torch_compile"),
)
"""Launches that differ in one of these say nothing of each other's memory."""


@dataclass(frozen=True)
class KnownLaunch:
    """A launch that got ready, and where its memory went."""

    cell: Cell
    budget: Budget

    @property
    def ranks(self) -> tuple[RankBudget, ...]:
        return tuple(rank for rank in self.budget.ranks if rank.before_load is not None and rank.weights is not None)


def comparable(known: Cell, cell: Cell) -> bool:
    return all(known.arguments.get(name) == cell.arguments.get(name) for name in SAME)


def distance(launch: KnownLaunch, cell: Cell) -> tuple[float, ...]:
    """Smaller is closer; among equals the earlier launch."""
    mine, theirs = cell.speculation, launch.cell.speculation
    fraction = abs(
        (number(launch.cell.arguments.get("mem_fraction_static")) or 0.0)
        - (number(cell.arguments.get("mem_fraction_static")) or 0.0)
    )
    limit = abs((graph_limit(launch.cell) or 0.0) - (graph_limit(cell) or 0.0))
    if mine is None or theirs is None:
        return (float((mine is None) != (theirs is None)), 0, 0, fraction, limit)
    return (
        0,
        abs(mine.num_draft_tokens - theirs.num_draft_tokens) + abs(mine.eagle_topk - theirs.eagle_topk),
        abs(mine.num_steps - theirs.num_steps),
        fraction,
        limit,
    )


def tokens_per_request(phase: Phase, speculation: Speculation | None) -> int:
    """Tokens of one request in a graph of ``phase`` (``num_tokens_per_req`` of the capture lines, 0.5.17 and later)."""
    if speculation is None:
        return 1
    return {
        "capture_target_verify": speculation.num_draft_tokens,
        "capture_draft_extend": speculation.num_draft_tokens,
        "capture_draft_decode": speculation.eagle_topk,
    }.get(phase, 1)


def batch_of(launch: KnownLaunch, phase: Phase) -> float:
    """The largest batch size that the launch captured in ``phase``."""
    sizes = launch.budget.graph_batch_sizes.get(phase, ())
    return max(sizes, default=graph_limit(launch.cell) or 1)


def graph_limit(cell: Cell) -> float | None:
    """The cell's graph batch limit, under either of its names."""
    return number(cell.arguments.get("cuda_graph_max_bs")) or number(cell.arguments.get("cuda_graph_max_bs_decode"))


def tokens_of(launch: KnownLaunch, phase: Phase) -> float:
    """Tokens in the largest graph of ``phase``."""
    printed = launch.budget.tokens_per_request.get(phase)
    return batch_of(launch, phase) * (printed or tokens_per_request(phase, launch.cell.speculation))


def number(value: ArgumentValue | None) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
