"""The noise of one figure: the relative standard deviation between launches that change nothing.

The replication unit is the launch: the same build on the same machine differs more between launches than between the
repeats inside one. In order of preference:

* **pooled**: the spread of the figure's own first accepted launches and that of the matrix's other figures
  (:mod:`mtpgate.judge.pool`), where enough figures have launches.
* **sample**: the own spread alone, with Student's quantile, from 3 launches on.
* **declared**: a noise that is taken for granted for the machine; all there is for 1 or 2 launches. It is raised to
  what the repeats inside the launches show (a launch is a median of repeats; the standard error of a median is at most
  sqrt(pi / (2 r)) standard deviations), and to the own spread where that is larger.

Of the latter two the tighter bound counts, unless the launches refute the declared noise (chi-square at 1 %). Taking
the tighter of two at most doubles the rate of false alarms, and that only where the true noise is exactly the declared.
An estimate is never below 0.5 %: a few equal values are luck, not precision.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from mtpgate.judge.baselines import BaselineLaunch
from mtpgate.judge.pool import (
    FIRST_LAUNCHES,
    SMALLEST_NOISE,
    SMALLEST_SAMPLE,
    UNKNOWN_CORRELATION,
    Pool,
    moderated,
    series_of,
)
from mtpgate.judge.rule import NIGHTS, Limits, limits

ASSUMED_LAUNCH_NOISE = 0.03
"""Relative standard deviation between launches that is taken for granted until launches tell it.

A choice, not a measurement: a public study saw 0.15 to 2.5 % between repeats on quiet GPUs at temperature 0, and
launches differ more than repeats. A machine that is shared needs its own launches, or a larger value."""

REFUTED_AT = 0.01
"""Significance at which a sample refutes the declared noise."""

MOST_LAUNCHES = 50
"""Beyond this many accepted launches "record more" is no advice."""


@dataclass(frozen=True)
class Noise:
    """The noise of a figure and where it is from."""

    relative: float
    """Standard deviation of one launch, relative to the baseline's mean."""
    freedom: float
    """Degrees of freedom that it was estimated with; infinite if declared."""
    launches: int
    source: str
    """In words, for the verdict."""
    night_correlation: float = UNKNOWN_CORRELATION
    estimated: bool = False
    """From launches; otherwise declared."""

    def limits(self, *, alpha: float, minimum_effect: float, nights: int = 1) -> Limits:
        """What breaches; ``nights`` with tonight."""
        return limits(
            noise=self.relative,
            freedom=self.freedom,
            night_correlation=self.night_correlation,
            launches=self.launches,
            nights=nights,
            alpha=alpha,
            minimum_effect=minimum_effect,
        )

    def sees(self, minimum_effect: float, *, alpha: float, nights: int) -> bool:
        """Whether a drop of the minimum effect rises above chance with probability POWER, tonight or in the nights."""
        found = self.limits(alpha=alpha, minimum_effect=minimum_effect, nights=nights)
        return min(float(found.resolution), float(found.nights_resolution)) <= minimum_effect


def noise_of(
    baseline: Sequence[BaselineLaunch],
    repeats: Sequence[float],
    *,
    alpha: float,
    assumed: float = ASSUMED_LAUNCH_NOISE,
    pool: Pool | None = None,
) -> Noise:
    """The noise that a new launch with these ``repeats`` (tokens/s) is judged by; ``baseline`` is not empty."""
    values = np.array([launch.tokens_per_second for launch in baseline[:FIRST_LAUNCHES]])
    known, count = len(values), len(baseline)
    if pool is not None:
        variance, _ = series_of(values) if known > 1 else (np.array(0.0), np.array(0.0))
        relative, freedom = moderated(variance, known, pool)
        source = f"{float(relative):.1%} from {known} launch{'es' if known > 1 else ''} and {pool.figures} figures"
        return Noise(float(relative), float(freedom), count, source, float(pool.night_correlation), True)
    declared = max(assumed, _median_error([*(launch.repeats for launch in baseline), repeats]))
    origin = "from the spread of the repeats inside" if declared > assumed else "declared for this machine"
    without = Noise(declared, math.inf, count, f"{declared:.1%} {origin}")
    if count < SMALLEST_SAMPLE:
        return without
    spread = float(np.std(values, ddof=1) / values.mean())
    estimate = max(spread, SMALLEST_NOISE)
    sample = Noise(estimate, known - 1, count, f"{estimate:.1%} from {known} launches", estimated=True)
    if (known - 1) * (spread / declared) ** 2 > float(special.chdtri(known - 1, REFUTED_AT)):
        return sample
    if spread > declared:
        without = replace(sample, freedom=math.inf, estimated=False)
    return min(sample, without, key=lambda noise: float(noise.limits(alpha=alpha, minimum_effect=0.0).chance))


def more_launches(noise: Noise, minimum_effect: float, *, alpha: float) -> int | None:
    """How many more accepted launches would make ``minimum_effect`` findable within NIGHTS, if they spread as these do.

    0: none, only more nights. None: no number would.
    """

    def enough(launches: int) -> bool:
        freedom = noise.freedom + min(launches, FIRST_LAUNCHES) - min(noise.launches, FIRST_LAUNCHES)
        return replace(noise, launches=launches, freedom=freedom).sees(minimum_effect, alpha=alpha, nights=NIGHTS)

    if not enough(MOST_LAUNCHES):
        return None
    return bisect_left(range(noise.launches, MOST_LAUNCHES), True, key=enough)


def _median_error(launches: Sequence[Sequence[float]]) -> float:
    """Relative standard error of a launch's median, pooled over the launches that have repeats to tell it."""
    squares, freedom, counts = 0.0, 0, []
    for repeats in launches:
        if len(repeats) > 1 and statistics.fmean(repeats) > 0:
            squares += statistics.variance(repeats) / statistics.fmean(repeats) ** 2 * (len(repeats) - 1)
            freedom += len(repeats) - 1
            counts.append(len(repeats))
    if not freedom:
        return 0.0
    return math.sqrt(squares / freedom) * math.sqrt(math.pi / (2 * statistics.fmean(counts)))
