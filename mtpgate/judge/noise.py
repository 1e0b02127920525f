"""How far a launch may lie from its baseline by chance.

The replication unit is the launch: the same build on the same machine differs more between launches than between the
repeats inside one. Two bounds say how low one new launch can come out when nothing has changed:

* **sample** (3 launches or more): the one-sided prediction bound mean - t(n-1, alpha) * s * sqrt(1 + 1/n), with s the
  standard deviation of the launches, floored at 0.5 % of the mean (a sample of few equal values is luck, not
  precision). Assumes that launches are independent and normal.
* **assumed**: the same with a noise that is *declared* for the machine instead of estimated, so with the normal
  quantile: mean - z(alpha) * noise * sqrt(1 + 1/n). It is all there is for 1 or 2 launches. The declared noise is
  raised to what the repeats inside the launches show (a launch is a median of repeats; the standard error of a median
  is at most sqrt(pi / (2 r)) standard deviations), and to s where s is larger.

With few launches the t quantile is so large (44.7 at n = 3 and alpha 0.00025) that the sample bound would see nothing
that one launch had already shown. So the tighter bound counts, unless the launches refute the declared noise
(chi-square at 1 %); then only the sample bound does. Taking the tighter of two bounds at most doubles the rate of
false alarms, and that only where the true noise is exactly the declared one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy import special

from mtpgate.judge.baselines import BaselineLaunch

ASSUMED_LAUNCH_NOISE = 0.03
"""Relative standard deviation between launches that is taken for granted until launches tell it.

A choice, not a measurement: a public study saw 0.15 to 2.5 % between repeats on quiet GPUs at temperature 0, and
launches differ more than repeats. A machine that is shared needs its own launches, or a larger value."""

SMALLEST_NOISE = 0.005
"""Floor of the sample's s, relative to the mean."""

SMALLEST_SAMPLE = 3
"""Launches from which on their own spread is used."""

REFUTED_AT = 0.01
"""Significance at which a sample refutes the declared noise."""

POWER = 0.9
"""Probability with which a drop must be found to count as findable."""

MOST_LAUNCHES = 50
"""Beyond this many accepted launches "record more" is no advice."""


@dataclass(frozen=True)
class Noise:
    """One bound's ingredients. All are relative to the baseline's mean."""

    relative: float
    """Standard deviation of one launch."""
    quantile: float
    launches: int
    source: str
    """In words, for the verdict."""
    estimated: bool = False
    """From the launches' own spread, with Student's quantile; otherwise declared, with the normal one."""

    @property
    def margin(self) -> float:
        """How far below the mean one new launch can come out by chance."""
        return self.quantile * self.relative * math.sqrt(1 + 1 / self.launches)

    @property
    def findable_drop(self) -> float:
        """The smallest true drop that falls below the bound with probability POWER."""
        return self.margin + float(special.ndtri(POWER)) * self.relative * math.sqrt(1 + 1 / self.launches)


def noise_of(
    baseline: Sequence[BaselineLaunch],
    repeats: Sequence[float],
    *,
    alpha: float,
    assumed: float = ASSUMED_LAUNCH_NOISE,
) -> Noise:
    """The noise that a new launch with these ``repeats`` (tokens/s) is judged by; ``baseline`` is not empty."""
    values = [launch.tokens_per_second for launch in baseline]
    declared = max(assumed, _median_error([*(launch.repeats for launch in baseline), repeats]))
    spread = statistics.stdev(values) / statistics.fmean(values) if len(values) >= SMALLEST_SAMPLE else None
    return _choose(len(values), declared, spread, alpha, inside=declared > assumed)


def more_launches(noise: Noise, minimum_effect: float, *, alpha: float) -> int | None:
    """How many more accepted launches would make ``minimum_effect`` findable, if they spread as these do."""
    for launches in range(noise.launches + 1, MOST_LAUNCHES + 1):
        quantile = _student(launches, alpha) if noise.estimated else noise.quantile
        if replace(noise, launches=launches, quantile=quantile).findable_drop <= minimum_effect:
            return launches - noise.launches
    return None


def _choose(launches: int, declared: float, spread: float | None, alpha: float, *, inside: bool) -> Noise:
    z = float(special.ndtri(1 - alpha))
    origin = "from the spread of the repeats inside" if inside else "declared for this machine"
    assumed = Noise(declared, z, launches, f"{declared:.1%} {origin}")
    if spread is None:
        return assumed
    estimate = max(spread, SMALLEST_NOISE)
    sample = Noise(estimate, _student(launches, alpha), launches, f"{estimate:.1%} from {launches} launches", True)
    freedom = launches - 1
    if freedom * (spread / declared) ** 2 > float(special.chdtri(freedom, REFUTED_AT)):
        return sample
    if spread > declared:
        assumed = replace(sample, quantile=z, estimated=False)
    return min(sample, assumed, key=lambda noise: noise.margin)


def _student(launches: int, alpha: float) -> float:
    return float(special.stdtrit(launches - 1, 1 - alpha))


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
