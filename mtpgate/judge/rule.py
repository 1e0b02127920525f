"""The rule in numbers: from the noise of a figure to the drops that breach. What judges one launch and what is
simulated by the million are these functions; they take numpy arrays as well as numbers.

Drops and effects are relative to the baseline's mean. Two tests look at a launch, and share its false-alarm rate:

* **tonight**: the launch lies below the mean of *all* accepted launches by at least the minimum effect, and by more
  than chance explains in both a launch and its relaunch.
* **the last nights**: the mean of the last NIGHTS nights, tonight included, lies below the mean of the *first* accepted
  launches by more than chance explains; a drop of the minimum effect is not out of question (were it true, this mean
  would be above the limit in one case in ten); and it does not rest on one night: without its slowest night the mean
  is still below half the limit. This finds what one night cannot show: small drops, and slow drift, which later
  accepted launches would follow.

Both need the relaunch to confirm them. A night's value is the mean of its launches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mtpgate.judge.bounds import (
    Array,
    Bools,
    launch_error,
    mean_variance,
    nights_error,
    pair_correlation,
    pair_power_quantile,
    pair_quantile,
    single_quantile,
)
from mtpgate.judge.pool import FIRST_LAUNCHES

NIGHTS = 5
FEWEST_NIGHTS = 2
"""Tonight alone is the other test's."""

SHARE_OF_TONIGHT = 0.5
"""Of a figure's false-alarm rate; the rest is for the last nights (Bonferroni)."""

WITHOUT_SLOWEST = 0.5


@dataclass(frozen=True)
class Limits:
    """Drops, all positive."""

    chance: Array
    """What noise explains."""
    limit: Array
    """The larger of that and what is worth an alarm."""
    gain: Array
    """The same for a rise, which no relaunch confirms."""
    findable: Array
    """The smallest drop that tonight's test finds with probability POWER."""
    resolution: Array
    """The same, if every drop beyond chance counted."""
    nights_chance: Array
    nights_limit: Array
    """Infinite below FEWEST_NIGHTS."""
    nights_findable: Array
    nights_resolution: Array


def limits(
    *,
    noise: ArrayLike,
    freedom: ArrayLike,
    night_correlation: ArrayLike,
    launches: int,
    nights: int,
    alpha: float,
    minimum_effect: float,
) -> Limits:
    """What breaches against ``launches`` accepted ones. ``noise``, ``freedom``: see :mod:`mtpgate.judge.bounds`.

    ``nights``: how many there are, tonight included.
    """
    tonight, later = alpha * SHARE_OF_TONIGHT, alpha * (1 - SHARE_OF_TONIGHT)
    error = np.asarray(noise) * launch_error(launches, night_correlation)
    chance = pair_quantile(pair_correlation(launches, night_correlation), freedom, tonight) * error
    limit = np.maximum(chance, minimum_effect)
    # Independent relaunches are the worse case for the power of two breaches.
    both = pair_power_quantile(1 / (launches + 1)) * error
    first = min(launches, FIRST_LAUNCHES)
    nights_err = np.asarray(noise) * nights_error(first, max(nights, 1), night_correlation)
    nights_chance = single_quantile(freedom, later) * nights_err
    reach = pair_power_quantile(_windows_correlation(max(nights, 1), first)) * nights_err
    nights_limit = np.maximum(nights_chance, minimum_effect - reach)
    if nights < FEWEST_NIGHTS:
        nights_limit = np.full_like(nights_limit, np.inf)
    return Limits(
        chance=chance,
        limit=limit,
        gain=np.maximum(single_quantile(freedom, tonight) * error, minimum_effect),
        findable=limit + both,
        resolution=chance + both,
        nights_chance=nights_chance,
        nights_limit=nights_limit,
        nights_findable=nights_limit + reach,
        nights_resolution=np.where(np.isinf(nights_limit), np.inf, nights_chance + reach),
    )


def breaches_tonight(effect: ArrayLike, found: Limits) -> Bools:
    """Whether a launch with this ``effect`` (value / mean - 1) breaches."""
    return np.asarray(np.asarray(effect) < -found.limit)


def breaches_nights(effects: Array, found: Limits) -> Bools:
    """Whether the last nights (last axis: effect of each against the first baseline) breach."""
    mean, rest = effects.mean(axis=-1), without_slowest(effects)
    return np.asarray((mean < -found.nights_limit) & (rest < -WITHOUT_SLOWEST * found.nights_limit))


def without_slowest(effects: Array) -> Array:
    """Mean of all nights but the slowest, along the last axis; of one night, that night."""
    count = effects.shape[-1]
    if count == 1:
        return np.asarray(effects[..., 0])
    return np.asarray((effects.sum(axis=-1) - effects.min(axis=-1)) / (count - 1))


def _windows_correlation(nights: int, launches: int) -> float:
    """Of the nights' mean with tonight's launch and that with the mean of it and an independent relaunch."""
    common = float(mean_variance(launches))
    first, second = 1 / nights + common, (nights - 0.5) / nights**2 + common
    return float(second / np.sqrt(first * second))
