"""Does MTP pay? Speed-up over the reference by concurrency, where it ends, and the best cell for each workload.

All from the measurements of one run, so that machine and build are the same on both sides. A speed-up is the ratio of
two launches' medians; its spread goes from the slowest repeat against the reference's fastest to the opposite. That is
the scatter inside two launches. Launches differ more, so a spread that does not reach 1 is a hint, not a proof.

The crossover is where the speed-up becomes 1: interpolated linearly in the logarithms of speed-up and concurrency,
between two concurrencies that were measured, never beyond them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Point:
    """One sound measurement. Speeds are output tokens/s."""

    cell: str
    workload: str
    concurrency: int
    tokens_per_second: float
    repeats: tuple[float, ...]
    accept_length: float | None = None


@dataclass(frozen=True)
class SpeedUp:
    """A cell's speed over the reference's at one workload."""

    point: Point
    ratio: float
    low: float
    high: float

    @property
    def pays(self) -> Literal["yes", "no", "unclear"]:
        """Unclear where the spread reaches 1."""
        if self.low > 1:
            return "yes"
        return "no" if self.high < 1 else "unclear"

    def __str__(self) -> str:
        return f"{self.ratio:.2f}x ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Crossing:
    """Where a cell's speed-up becomes 1."""

    concurrency: float
    below: int
    above: int
    """The measured concurrencies that it lies between."""
    direction: Literal["ends", "begins"]
    """What paying does with rising concurrency."""

    def __str__(self) -> str:
        verb = "pays up to" if self.direction == "ends" else "pays from"
        return f"{verb} about C{self.concurrency:.0f} (interpolated between C{self.below} and C{self.above})"


@dataclass(frozen=True)
class CellPayoff:
    """One speculative cell."""

    cell: str
    speedups: tuple[SpeedUp, ...]
    """By rising concurrency."""

    @property
    def crossings(self) -> tuple[Crossing, ...]:
        found = []
        for low, high in itertools.pairwise(self.speedups):
            if low.ratio != high.ratio and (low.ratio - 1) * (high.ratio - 1) <= 0 and low.ratio != 1:
                share = math.log(low.ratio) / (math.log(low.ratio) - math.log(high.ratio))
                first, second = low.point.concurrency, high.point.concurrency
                at = math.exp(math.log(first) + share * (math.log(second) - math.log(first)))
                found.append(Crossing(at, first, second, "ends" if low.ratio > 1 else "begins"))
        return tuple(found)

    @property
    def crossover(self) -> str:
        """In words, also where there is none."""
        if self.crossings:
            return "; ".join(str(crossing) for crossing in self.crossings)
        first, last = self.speedups[0], self.speedups[-1]
        where = f"C{first.point.concurrency}"
        if first.point.concurrency == last.point.concurrency:
            return f"only {where} was measured: no crossover can be told"
        verb = "is faster than the reference" if first.ratio > 1 else "is not faster than the reference"
        return f"{verb} from {where} to C{last.point.concurrency}; a crossover is not within what was measured"


@dataclass(frozen=True)
class Best:
    """The fastest cell at a workload."""

    point: Point
    over_reference: SpeedUp | None
    """None if it is the reference."""
    tied: tuple[str, ...]
    """Cells whose repeats overlap with its own: they may be as fast."""


@dataclass(frozen=True)
class Payoff:
    """What a run says of it."""

    reference: str
    cells: tuple[CellPayoff, ...]
    """Those that were measured where the reference was too."""
    best: Mapping[str, Best]
    """By workload, by rising concurrency."""
    points: tuple[Point, ...]


def payoff(points: Iterable[Point], reference: str, speculative: Sequence[str]) -> Payoff | None:
    """What sound measurements of one run say; None if the reference or every other cell is missing.

    ``speculative``: the ids of the cells that MTP is in question for. Other cells can be best too.
    """
    known = sorted(points, key=lambda point: point.concurrency)
    base = {point.workload: point for point in known if point.cell == reference}
    cells = []
    for cell in speculative:
        speedups = tuple(
            speed_up(point, base[point.workload]) for point in known if point.cell == cell and point.workload in base
        )
        if speedups:
            cells.append(CellPayoff(cell, speedups))
    if not cells:
        return None
    compared = [point for point in known if point.workload in base]
    best = {workload: _best(compared, base[workload]) for workload in dict.fromkeys(p.workload for p in compared)}
    return Payoff(reference, tuple(cells), best, tuple(known))


def speed_up(point: Point, reference: Point) -> SpeedUp:
    """Of one workload; ``reference`` is the reference cell's."""
    return SpeedUp(
        point,
        point.tokens_per_second / reference.tokens_per_second,
        min(point.repeats) / max(reference.repeats),
        max(point.repeats) / min(reference.repeats),
    )


def _best(points: Sequence[Point], reference: Point) -> Best:
    rivals = [point for point in points if point.workload == reference.workload]
    fastest = max(rivals, key=lambda point: point.tokens_per_second)
    tied = (point.cell for point in rivals if point is not fastest and max(point.repeats) >= min(fastest.repeats))
    return Best(fastest, None if fastest is reference else speed_up(fastest, reference), tuple(tied))
