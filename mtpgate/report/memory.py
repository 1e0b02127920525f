"""Where a launch's memory went, ready to be drawn and written: the stored budget as bars, columns and rows.

All sizes are GiB. A budget is read leniently, as everything that an older or newer suite may have stored: what is no
budget is one sentence for the page, what is not known is not shown. Ranks that are alike are one bar and one row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mtpgate.report.memory_names import UNFINISHED, position
from mtpgate.report.ranks import grouped, ranges
from mtpgate.report.records import LaunchRecord
from mtpgate.server.budget import STATIC_NAMES, Budget, RankBudget

ALIKE_GIB = 0.05
"""Ranks whose figures all differ by no more are shown as one: allocators round and ranks are never equal to a byte."""

SHOWN_GIB = 0.005
"""Less than this is 0.00 in the table and no part of the picture."""


@dataclass(frozen=True)
class Figures:
    """The memory of ranks that are alike: the figures are those of :attr:`rank`."""

    ranks: tuple[RankBudget, ...]
    rank: RankBudget
    """The one with the least left."""
    parts: tuple[tuple[str, float], ...]
    """``(name, GiB)`` from the first taken to what is left; adds up to what was available before the load (or to more,
    where the log's figures contradict each other). Empty where that is unknown."""
    fraction: float | None

    @property
    def over(self) -> float:
        """GiB by which the failing request was larger than what was free; 0 without one."""
        wanted, left = self.rank.wanted, self.rank.left
        return 0.0 if wanted is None else max(wanted - (left or 0.0), 0.0)

    @property
    def values(self) -> dict[str, float]:
        """All figures of the row, by the name of their column."""
        rank = self.rank
        known = {"before_load": rank.before_load, **dict(self.parts), "wanted": rank.wanted}
        if not self.parts:
            known |= {name: getattr(rank, name) for name in (*STATIC_NAMES, "left")} | dict(rank.graphs)
        return {name: float(size) for name, size in known.items() if size is not None}

    @property
    def kv_tokens(self) -> int | None:
        """The KV tokens of the rank that has fewest of them."""
        return min((rank.kv_tokens for rank in self.ranks if rank.kv_tokens is not None), default=None)

    def label(self, single: str) -> str:
        """``TP0, TP2 to TP5``; ``single`` for the one rank of a launch, whose log has no prefix."""
        return ranges([rank.rank or single for rank in self.ranks])


@dataclass(frozen=True)
class Memory:
    """One launch's memory and what had been forecast of it."""

    budget: Budget
    figures: tuple[Figures, ...]
    predicted: Mapping[str, float]
    problem: str = ""
    """Why the stored budget cannot be shown, in one sentence; empty otherwise."""

    @cached_property
    def bars(self) -> tuple[Figures, ...]:
        """What can be drawn: those of which it is known what they began with."""
        return tuple(item for item in self.figures if item.parts and (item.rank.before_load or 0.0) > 0)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the figures that are known of at least one rank or predicted, in the order of :data:`LABELS`."""
        found = {
            name
            for values in (*(item.values for item in self.figures), self.predicted)
            for name, size in values.items()
            if abs(size) >= SHOWN_GIB or name in ("before_load", "left", "wanted")
        }
        return tuple(sorted(found, key=position))

    @property
    def scale(self) -> float:
        """GiB that a bar's whole width stands for: all its memory, and a failing request up to a third beyond it."""
        ends = [(max(item.rank.before_load or 0.0, sum(size for _, size in item.parts)), item) for item in self.bars]
        return max((min(end + item.over, end * 4 / 3) for end, item in ends), default=0.0) or 1.0

    @property
    def kv_tokens(self) -> int | None:
        """KV tokens of the launch: as SGLang settled them, else the fewest that a rank has."""
        counted = [item.kv_tokens for item in self.figures if item.kv_tokens is not None]
        return self.budget.max_total_num_tokens or min(counted, default=None)

    @property
    def legend(self) -> tuple[str, ...]:
        """Names of the parts that are drawn, in the order of the columns."""
        drawn = {name for item in self.bars for name, size in item.parts if size >= SHOWN_GIB}
        return tuple(name for name in self.columns if name in drawn)


def memory_of(launch: LaunchRecord) -> Memory | None:
    """The memory of ``launch``; None where neither a figure nor a forecast of one is stored."""
    stored = launch.budget or (launch.diagnosis or {}).get("budget")
    predicted = _predicted(launch.forecast)
    budget, problem = read_budget(stored)
    figures = _figures(launch, budget)
    return Memory(budget, figures, predicted, problem) if figures or predicted or problem else None


def read_budget(stored: object) -> tuple[Budget, str]:
    """A stored budget, and why it cannot be read, in one sentence (then it is an empty one)."""
    if stored is None:
        return Budget(), ""
    try:
        return _budgets().validate_python(stored), ""
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return Budget(), f"The stored memory budget cannot be read: {place or 'budget'}: {first['msg']}."


def least_left(budget: object) -> float | None:
    """GiB left on the rank that has least, of a stored budget; None where it does not tell."""
    ranks = read_budget(budget)[0].ranks
    return min((rank.left for rank in ranks if rank.left is not None), default=None)


@cache
def _budgets() -> TypeAdapter[Budget]:
    return TypeAdapter(Budget)


def _sizes(rank: RankBudget) -> dict[str, float | None]:
    plain = {name: getattr(rank, name) for name in ("before_load", *STATIC_NAMES, "capture_start", "left", "wanted")}
    return {**plain, **{str(phase): size for phase, size in rank.graphs.items()}}


def _parts(rank: RankBudget, launch: LaunchRecord) -> tuple[tuple[str, float], ...]:
    """The segments, with what an unfinished capture had taken as one of its own."""
    segments = [(str(name), size) for name, size in rank.segments()]
    if not segments:
        return ()
    *taken, (_, other), (_, left) = segments
    if rank.left is None:
        return (*taken, ("unknown", other))
    phase = str((launch.diagnosis or {}).get("phase") or "")
    if phase.startswith("capture") and rank.capture_start is not None:
        captured = min(rank.capture_start - left - sum(rank.graphs.values()), other)
        if captured >= SHOWN_GIB:
            return (*taken, (phase + UNFINISHED, captured), ("other", other - captured), ("left", left))
    return tuple(segments)


def _figures(launch: LaunchRecord, budget: Budget) -> tuple[Figures, ...]:
    ranks = [rank for rank in budget.ranks if any(size is not None for size in _sizes(rank).values())]
    found = []
    for alike in grouped(ranks, _sizes, ALIKE_GIB):
        rank = min(alike, key=_left)
        found.append(Figures(tuple(alike), rank, _parts(rank, launch), budget.fraction))
    return tuple(found)


def _left(rank: RankBudget) -> float:
    return math.inf if rank.left is None else rank.left


def _predicted(forecast: Mapping[str, Any] | None) -> dict[str, float]:
    found = (forecast or {}).get("predicted")
    sizes = {**(found if isinstance(found, Mapping) else {})}
    if "left" not in sizes:
        sizes["left"] = (forecast or {}).get("left_gib")
    return {
        str(name): float(size)
        for name, size in sizes.items()
        if isinstance(size, int | float) and not isinstance(size, bool)
    }
