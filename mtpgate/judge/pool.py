"""What the other figures of a matrix tell of the noise of one.

Ten accepted launches tell their own standard deviation within a factor of 1.6, and the bounds of the rare alarms that a
matrix can afford are so far out that this costs half of what could be found. The figures of one matrix are measured on
one machine in the same way, so their noise is alike, though not equal: how much alike is estimated too.

* **Noise**: empirical Bayes for variances (Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004,
  article 3, section 6). Variances s_g^2 with d_g degrees of freedom scatter around s_0^2 as if they had d_0 prior
  degrees of freedom; both follow from mean and variance of log s_g^2. A figure's own estimate becomes
  (d_0 s_0^2 + d_g s_g^2) / (d_0 + d_g), with d_0 + d_g degrees of freedom. Figures that are not alike make d_0 small,
  and then each one's own launches count. d_0 is capped by the degrees of freedom that told s_0.
* **Correlation from one night to the next**: the lag-1 autocorrelation of accepted launches in their order, pooled,
  corrected for the bias of short series (Kendall, Biometrika 41, 1954), plus CORRELATION_CAUTION standard errors: too
  little of it makes false alarms.

Launches of one evening say nothing of how nights differ. Accept one a night.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from mtpgate.judge.bounds import Array, mean_variance

SMALLEST_NOISE = 0.005
"""Floor of a sample's standard deviation, relative to the mean: few equal values are luck, not precision."""

SMALLEST_SPREAD = 2e-4
"""A sample's standard deviation below this is that of rounded, equal values: it has no meaningful logarithm."""

SMALLEST_SAMPLE = 3
"""Launches of a figure from which on their own spread is used."""

FEWEST_FIGURES = 4
"""Figures with a spread of their own from which on it can be told how much they are alike."""

FIRST_LAUNCHES = 10
"""So many of the oldest accepted launches are a figure's first baseline, and tell its noise: if later ones followed a
drift, it would pass for noise and hide itself."""

SHORTEST_SERIES = 6
"""Launches of a figure from which on they tell of the correlation between nights."""

CORRELATION_CAUTION = 0.5
UNKNOWN_CORRELATION = 0.2
LARGEST_CORRELATION = 0.9


@dataclass(frozen=True)
class Pool:
    """The noise of a matrix's figures. Scalars, or arrays over simulated matrices."""

    noise: Array
    """s_0: relative standard deviation of a launch."""
    freedom: Array
    """d_0."""
    night_correlation: Array
    figures: int
    """That told it."""


def pool_of(figures: Iterable[Sequence[float]]) -> Pool | None:
    """The pool of figures, each its accepted launches' tokens/s, oldest first; None if too few have a spread."""
    first = (np.asarray(values, dtype=float)[:FIRST_LAUNCHES] for values in figures)
    known = [values for values in first if len(values) >= SMALLEST_SAMPLE]
    if len(known) < FEWEST_FIGURES:
        return None
    told = [series_of(values) for values in known]
    variances, correlations = (np.array([float(pair[part]) for pair in told]) for part in (0, 1))
    return pooled(variances, correlations, np.array([len(values) for values in known]))


def series_of(values: Array) -> tuple[Array, Array]:
    """Relative variance and lag-1 autocorrelation along the last axis; no spread has no correlation."""
    mean = values.mean(axis=-1, keepdims=True)
    deviations = values / mean - 1
    squares = (deviations**2).sum(axis=-1)
    products = (deviations[..., 1:] * deviations[..., :-1]).sum(axis=-1)
    correlation = np.divide(products, squares, out=np.zeros_like(squares), where=squares > 0)
    return squares / (values.shape[-1] - 1), correlation


def pooled(variances: Array, correlations: Array, launches: Array) -> Pool:
    """The pool of FEWEST_FIGURES figures or more (last axis) with ``launches`` values each."""
    freedom = launches - 1.0
    correlation = _night_correlation(correlations, launches)
    # Nights that resemble the night before spread less than nights do.
    variances = _unbiased(variances, launches, correlation[..., None])
    logs = np.log(np.maximum(variances, SMALLEST_SPREAD**2)) - special.digamma(freedom / 2) + np.log(freedom / 2)
    count = logs.shape[-1]
    surplus = logs.var(axis=-1, ddof=1) - special.polygamma(1, freedom / 2).mean()
    total = freedom.sum()
    # Below this surplus the figures are as alike as their own scatter can tell.
    prior = np.minimum(2 * _inverse_trigamma(np.maximum(surplus, 1e-9)), total)
    noise = np.sqrt(np.exp(logs.mean(axis=-1) + special.digamma(prior / 2) - np.log(prior / 2)))
    return Pool(noise, prior, correlation, count)


def moderated(variance: Array, launches: int, pool: Pool) -> tuple[Array, Array]:
    """Relative standard deviation of a figure with ``launches`` accepted ones, and its degrees of freedom."""
    own = launches - 1.0
    unbiased = _unbiased(variance, np.asarray(launches), pool.night_correlation) if own else variance
    freedom = pool.freedom + own
    noise = np.sqrt((pool.freedom * pool.noise**2 + own * unbiased) / freedom)
    return np.maximum(noise, SMALLEST_NOISE), freedom


def _unbiased(variance: Array, launches: Array, night_correlation: Array) -> Array:
    """E s^2 = sigma^2 (n - g) / (n - 1), with g / n the variance of the mean in units of sigma^2."""
    return np.asarray(variance * (launches - 1) / (launches * (1 - mean_variance(launches, night_correlation))))


def _night_correlation(correlations: Array, launches: Array) -> Array:
    long = launches >= SHORTEST_SERIES
    if not long.any():
        return np.full(correlations.shape[:-1], UNKNOWN_CORRELATION)
    n = launches[long]
    unbiased = (correlations[..., long] + 1 / n) / (1 - 3 / n)
    value = (unbiased * n).sum(axis=-1) / n.sum()
    error = np.sqrt((n / (1 - 3 / n) ** 2).sum()) / n.sum()
    return np.asarray(np.clip(value + CORRELATION_CAUTION * error, 0.0, LARGEST_CORRELATION))


def _inverse_trigamma(value: Array) -> Array:
    """Newton's method on 1 / trigamma, which is nearly linear (Smyth 2004, appendix)."""
    found = 0.5 + 1 / value
    for _ in range(30):
        trigamma = special.polygamma(1, found)
        found = found + trigamma * (1 - trigamma / value) / special.polygamma(2, found)
    return np.asarray(found)
