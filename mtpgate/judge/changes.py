"""Where the history of a cell changed its level: advice, never a verdict.

Optimal partitioning (Jackson et al., IEEE Signal Processing Letters 12, 2005): the segments of at least MINIMUM_SEGMENT
nights that minimise the sum of squares within plus a penalty for each further segment. The penalty is the square of
the quantile that one change has to exceed at ALPHA over all places where it could be (Bonferroni), times the variance
of a night, which the differences between neighbours tell whatever the level does (their median, as for normal noise).
Levels that differ by less than the minimum effect are then joined. Assumes independent nights. With nights that
resemble each other such a test finds 1.4 to 1.7 changes in 100 nights that are none, so it is advice only.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from mtpgate.judge.baselines import BaselineKey
from mtpgate.judge.bounds import Array
from mtpgate.judge.history import HistoryEntry
from mtpgate.judge.nights import Dated, nights_of
from mtpgate.judge.pool import SMALLEST_NOISE

MINIMUM_SEGMENT = 3
ALPHA = 0.01
RECENT = 10
"""Nights after which a change is old news."""
LONGEST = 400
"""Nights that are looked at, the newest."""


@dataclass(frozen=True)
class ChangePoint:
    """A change of level: the last night of the old level and the first of the new one."""

    last: Dated
    first: Dated
    before: float
    """Mean tokens/s of the old level; ``after`` of the new one."""
    after: float
    nights: int
    """So many nights have been measured since, the first one included."""

    @property
    def recent(self) -> bool:
        """Whether it is worth telling beside tonight's verdict."""
        return self.nights <= RECENT

    def __str__(self) -> str:
        version = f"; SGLang {self.last.sglang} -> {self.first.sglang}" if self.last.sglang != self.first.sglang else ""
        return (
            f"{self.before:.1f} -> {self.after:.1f} tok/s ({self.after / self.before - 1:+.1%}) between "
            f"{self.last.when:%Y-%m-%d %H:%M} and {self.first.when:%Y-%m-%d %H:%M}{version}"
        )


def change_points(
    entries: Sequence[HistoryEntry], key: BaselineKey, *, minimum_effect: float
) -> tuple[ChangePoint, ...]:
    """The changes in the nights under ``key``, whatever their SGLang, oldest first."""
    alike = key.model_copy(update={"sglang": ""})
    nights = nights_of(entry for entry in entries if entry.key.model_copy(update={"sglang": ""}) == alike)[-LONGEST:]
    values = np.array([dated.night.tokens_per_second for dated in nights])
    cuts = [0, *_cuts(values, minimum_effect), len(nights)]
    return tuple(
        ChangePoint(
            last=nights[cut - 1],
            first=nights[cut],
            before=float(values[start:cut].mean()),
            after=float(values[cut:end].mean()),
            nights=len(nights) - cut,
        )
        for start, cut, end in zip(cuts[:-2], cuts[1:-1], cuts[2:], strict=True)
    )


def _cuts(values: Array, minimum_effect: float) -> list[int]:
    count = len(values)
    if count < 2 * MINIMUM_SEGMENT:
        return []
    sums, squares = (np.concatenate([[0.0], np.cumsum(values**power)]) for power in (1, 2))
    penalty = _night_variance(values) * float(special.stdtrit(count // 2, 1 - ALPHA / 2 / count)) ** 2
    cost, begin = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=int)
    cost[0] = -penalty
    for end in range(MINIMUM_SEGMENT, count + 1):
        starts = np.arange(end - MINIMUM_SEGMENT + 1)
        within = squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / (end - starts)
        candidates = cost[starts] + within + penalty
        begin[end], cost[end] = int(candidates.argmin()), float(candidates.min())
    cuts, end = [], count
    while (end := int(begin[end])) > 0:
        cuts.append(end)
    return _worth_telling(values, sorted(cuts), minimum_effect)


def _worth_telling(values: Array, cuts: list[int], minimum_effect: float) -> list[int]:
    while cuts:
        means = [float(part.mean()) for part in np.split(values, cuts)]
        steps = [abs(after / before - 1) for before, after in itertools.pairwise(means)]
        smallest = int(np.argmin(steps))
        if steps[smallest] >= minimum_effect:
            break
        cuts = cuts[:smallest] + cuts[smallest + 1 :]
    return cuts


def _night_variance(values: Array) -> float:
    differences = np.abs(np.diff(values))
    spread = float(np.median(differences)) / (float(special.ndtri(0.75)) * np.sqrt(2))
    return float(max(spread, SMALLEST_NOISE * float(values.mean()))) ** 2
