"""Will a cell fit? Predicted from what healthy launches of other cells left in their logs; never a reason to skip it.

With B the memory that was available before the weights were loaded and f the memory fraction, SGLang gives the KV pool
``available_after_load - B * (1 - f)`` (``srt/model_executor/pool_configurator.py``; from 0.5.15 on the draft's weights
are loaded before that and counted). What remains, about ``B * (1 - f)``, must hold the graphs and all that the log does
not name (activations, workspaces, communication).

Taken from the closest known launch (the same kind of speculation first, then draft tokens, steps, fraction):

- weights as they are: the cells of a matrix serve one model. The draft's are known only from a launch that had one.
- the pool by the equation above, the draft's share of it as in the known launch, both capped by ``max_total_tokens``.
- the graphs of a phase from the closest launch that captured it, in proportion to the largest batch size times the
  tokens of a request in it (verify and draft extend: num_draft_tokens; draft decode: topk; else 1); prefill graphs as
  they are. A capture's passing peak is not in a healthy log, so a forecast can only be too kind there.
- ``other`` as measured.

All sizes are GiB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mtpgate.matrix.cell import Cell
from mtpgate.server.budget import Budget
from mtpgate.server.known_launch import KnownLaunch, comparable, distance, number
from mtpgate.server.rank_forecast import RankForecast

__all__ = ["Forecast", "KnownLaunch", "compare", "forecast"]

CLOSE = 0.01
"""Of the memory before the load: a smaller remainder is too close to call. Logs round to 0.01 GiB, and the available
memory of one GPU differs by some hundred MiB from launch to launch."""


@dataclass(frozen=True)
class Forecast:
    """What is expected of a cell on the GPU that will have the least left."""

    from_cell: str
    fits: bool | None
    """None: something that it needs is not known, or it is too close to call."""
    predicted: Mapping[str, float] = field(default_factory=dict)
    """By the names of :meth:`mtpgate.server.budget.RankBudget.segments`; without what is not known."""
    left_gib: float | None = None
    """Negative: so much too little. Without what is not known, so at most this."""
    text: str = ""


def forecast(cell: Cell, known: Sequence[KnownLaunch]) -> Forecast | None:
    """What ``known`` launches say of ``cell``; None if there is none to learn from."""
    usable = [launch for launch in known if launch.ranks and comparable(launch.cell, cell)]
    if not usable:
        return None
    by_distance = sorted(usable, key=lambda launch: distance(launch, cell))
    fraction = number(cell.arguments.get("mem_fraction_static"))
    assumed = []
    if fraction is None:
        fraction = by_distance[0].budget.fraction
        assumed.append("the same memory fraction")
    if fraction is None:
        text = f"by {by_distance[0].cell.id}: unknown, neither names a memory fraction"
        return Forecast(by_distance[0].cell.id, None, text=text)
    predictions = [RankForecast(cell, by_distance, rank, fraction) for rank in by_distance[0].ranks]
    worst = min(predictions, key=lambda item: item.left)
    return _concluded(by_distance[0].cell.id, worst, assumed)


def compare(prediction: Forecast, measured: Budget) -> tuple[tuple[str, float | None, float | None], ...]:
    """``(segment, predicted, measured)`` of the rank with the least left, GiB; None where one side lacks it."""
    ranks = [rank for rank in measured.ranks if rank.segments()]
    if not ranks:
        return ()
    least = min(ranks, key=lambda rank: dict(rank.segments())["left"])
    found = dict(least.segments())
    names = [name for name in found if name not in ("other", "left")]
    names += [name for name in prediction.predicted if name not in (*names, "other", "left")]
    return tuple((name, prediction.predicted.get(name), found.get(name)) for name in [*names, "other", "left"])


def _concluded(source: str, rank: RankForecast, assumed: Sequence[str]) -> Forecast:
    left = round(rank.left, 2)
    enough = rank.pool > 0 and left >= 0
    close = abs(left) < CLOSE * rank.before and rank.pool > 0
    fits: bool | None = enough
    if close or (enough and rank.unknown):
        fits = None
    verdict = {True: "fits", False: "does not fit", None: "too close to call" if close else "unknown"}[fits]
    if rank.pool <= 0:
        why = f"no room for a KV pool: the fraction leaves {rank.pool:.2f} GiB for it"
    else:
        why = f"{left:.2f} of {rank.before:.2f} GiB left" + (", at most" if rank.unknown else "")
    parts = ", ".join(f"{name} {size:.2f}" for name, size in rank.segments.items())
    text = f"by {source}: {verdict}, {why} ({parts})"
    notes = list(dict.fromkeys([*assumed, *rank.notes]))
    text += f"; assumed: {', '.join(notes)}" if notes else ""
    text += f"; not known: {'; '.join(rank.unknown)}" if rank.unknown else ""
    predicted = {name: round(size, 2) for name, size in rank.segments.items()}
    return Forecast(source, fits, {**predicted, "left": left}, left, text)
