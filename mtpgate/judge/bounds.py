"""How far below its baseline a launch, or a few nights of launches, can come out when nothing has changed.

All figures are relative to the baseline's mean. ``noise`` is the standard deviation of one launch, estimated with
``freedom`` degrees of freedom (infinite: declared). Every function takes numpy arrays as well as numbers, so the rule
that judges one launch is the rule that :mod:`mtpgate.judge.evaluation` simulates by the million.

**One night.** A breach counts only if the relaunch breaches too, so the bound is the q at which *both* launches lie
below with probability alpha. Their deviations from the baseline's mean are a bivariate t: they share the mean, the
estimate of the noise, and the state that the machine is in that night. For equal limits q > 0 and correlation r

    P(T1 > q, T2 > q) = 1 / (2 pi) * integral from -pi/2 to asin(r) of (1 + 2 q^2 / (f (1 + sin t)))^(-f/2) dt

(Plackett's identity for the normal orthant, of which the mean over the chi-square of f degrees of freedom is closed).
How much of a launch's variance is the night's cannot be told from accepted launches, one a night; SHARED_BY_A_NIGHT is
a choice. At 0 the confirmation would count as fully independent evidence, at 1 as none.

**Several nights.** The mean of the last k nights lies below the baseline's mean by more than
t(f, 1 - alpha) * noise * sqrt(g(k) / k + g(n) / n) with probability alpha, where g(m) = 1 + 2 sum over j < m of
(1 - j / m) p^j is what the correlation p from one night to the next (AR(1)) makes of the variance of a mean of m.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

POWER = 0.9
"""Probability with which a drop must be found to count as findable."""

SHARED_BY_A_NIGHT = 0.5
"""Share of a launch's variance that its relaunch in the same night is assumed to have in common with it."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)
_LARGEST_FREEDOM = 1e7
_LARGEST_QUANTILE = 1e5


def mean_variance(count: ArrayLike, night_correlation: ArrayLike = 0.0) -> Array:
    """Variance of the mean of ``count`` successive nights, in units of one night's."""
    counts, correlation = np.broadcast_arrays(np.asarray(count), np.asarray(night_correlation, dtype=float))
    total = np.ones(counts.shape)
    for lag in range(1, int(counts.max(initial=1))):
        total = total + np.where(lag < counts, 2 * (1 - lag / counts) * correlation ** ((lag + 1) / 2), 0.0)
    return np.asarray(total / counts)


def launch_error(launches: ArrayLike, night_correlation: ArrayLike = 0.0) -> Array:
    """Standard deviation of a launch's distance from the mean of ``launches`` accepted ones, in units of its own."""
    return np.sqrt(1 + mean_variance(launches, night_correlation))


def nights_error(launches: ArrayLike, nights: ArrayLike, night_correlation: ArrayLike = 0.0) -> Array:
    """The same for the mean of ``nights`` nights."""
    return np.sqrt(mean_variance(nights, night_correlation) + mean_variance(launches, night_correlation))


def single_quantile(freedom: ArrayLike, alpha: float) -> Array:
    """The t quantile that one value exceeds with probability ``alpha``."""
    return np.asarray(special.stdtrit(np.minimum(freedom, _LARGEST_FREEDOM), 1 - alpha))


def pair_correlation(launches: ArrayLike, night_correlation: ArrayLike) -> Array:
    """Correlation of a launch's and its relaunch's distance from the baseline's mean."""
    common = mean_variance(launches, night_correlation)
    shared = np.maximum(SHARED_BY_A_NIGHT, np.sqrt(night_correlation))
    return np.asarray((shared + common) / (1 + common))


def pair_quantile(correlation: ArrayLike, freedom: ArrayLike, alpha: float) -> Array:
    """The q that both of two values exceed with probability ``alpha``; correlation in [0, 1), alpha below 1/4."""
    r, f = np.broadcast_arrays(np.asarray(correlation, dtype=float), np.asarray(freedom, dtype=float))
    pairs, back = np.unique(np.stack([r.ravel(), np.minimum(f.ravel(), _LARGEST_FREEDOM)]), axis=1, return_inverse=True)
    found = (
        np.array([_pair_quantile(float(pairs[0, 0]), float(pairs[1, 0]), alpha)])
        if pairs.shape[1] == 1
        else _solve(pairs[0], pairs[1], alpha)
    )
    return np.asarray(found[back.ravel()].reshape(r.shape))


@functools.lru_cache(maxsize=256)
def _pair_quantile(correlation: float, freedom: float, alpha: float) -> float:
    return float(_solve(np.array([correlation]), np.array([freedom]), alpha)[0])


def _solve(correlation: Array, freedom: Array, alpha: float) -> Array:
    low, high = np.full(correlation.shape, -7.0), np.full(correlation.shape, np.log(_LARGEST_QUANTILE))
    for _ in range(50):
        middle = (low + high) / 2
        above = both_exceed(np.exp(middle), correlation, freedom) > alpha
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.asarray(np.exp(high))


def both_exceed(quantile: ArrayLike, correlation: ArrayLike, freedom: ArrayLike) -> Array:
    """P(T1 > q, T2 > q) of a bivariate t, for q > 0."""
    q, r, f = (np.asarray(value, dtype=float)[..., None] for value in (quantile, correlation, freedom))
    half = (np.arcsin(r) + np.pi / 2) / 2
    angle = half * (_NODES + 1) - np.pi / 2
    inner = np.exp(-f / 2 * np.log1p(2 * q**2 / (f * (1 + np.sin(angle)))))
    return np.asarray((half * _WEIGHTS * inner).sum(axis=-1) / (2 * np.pi))


@functools.lru_cache(maxsize=64)
def pair_power_quantile(correlation: float, power: float = POWER) -> float:
    """The z > 0 for which both of two normal values exceed -z with probability ``power``."""
    low, high = 0.0, 8.0
    for _ in range(50):
        middle = (low + high) / 2
        neither_below = 1 - 2 * float(special.ndtr(-middle))
        neither_below += float(both_exceed(middle, correlation, _LARGEST_FREEDOM)) if middle else 0.0
        low, high = (middle, high) if neither_below < power else (low, middle)
    return high
