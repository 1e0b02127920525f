"""How the rule does on simulated histories, beside the rules of others: false alarms and detection.

A matrix of CELLS cells with two figures each is launched night after night: the first ``accepted`` nights become the
baseline, four quiet nights follow, then the nights that are looked at. Each night has a launch and a relaunch. What is
judged is the code that judges real launches (:mod:`mtpgate.judge.pool` and :mod:`mtpgate.judge.rule`), on arrays.

Noise of a launch, each with the same standard deviation:

* **independent**: normal.
* **correlated nights**: half of the variance is the night's own, which resembles the night before (AR(1), 0.5) and is
  the same for the relaunch.
* **night only**: all of it is the night's (AR(1), 0.5): the relaunch is no news at all. The worst case.
* **machine's nights**: as correlated nights, but one effect for all cells of a night: the box is slow today.
* **heavy tails**: Student's t with 3 degrees of freedom.
* **disturbed**: one launch in 20 scatters five times as much.
* **unlike cells**: normal; cells' standard deviations spread by a factor of 2 around the row's.

False alarms are counted per night of the matrix: one figure is enough. Detection is per figure: a drop that begins one
night is found in that night, or within five. The rules of others judge one launch without a relaunch, as they are used:
a fixed tolerance below the accepted launches' mean; 10 % below the mean of the last 10 nights; 3 standard deviations
below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from mtpgate.judge.bounds import Array, Bools
from mtpgate.judge.noise import ASSUMED_LAUNCH_NOISE
from mtpgate.judge.pool import FIRST_LAUNCHES, SMALLEST_SAMPLE, UNKNOWN_CORRELATION, Pool, moderated, pooled, series_of
from mtpgate.judge.rule import NIGHTS, Limits, breaches_nights, breaches_tonight, limits
from mtpgate.judge.verdict import DEFAULT_MINIMUM_EFFECT, alpha_for

CELLS, FIGURES = 20, 40
ROLLING = 10
DROPS = (0.03, 0.05, 0.1)
CREEP, CREEP_NIGHTS = 0.002, 60
"""A slow drift: so much a night, for so many nights."""
LOOKED_AT = 10
"""Nights of a history at which false alarms are counted."""

Kind = Literal[
    "independent", "correlated nights", "night only", "machine's nights", "heavy tails", "disturbed", "unlike cells"
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Scenario:
    """One row of the table."""

    kind: Kind
    noise: float
    """Relative standard deviation of a launch."""
    accepted: int


@dataclass(frozen=True)
class Rates:
    """What one rule came to. Ratios from 0 to 1."""

    false_alarms: float
    """Nights of a matrix with at least one."""
    one_night: Mapping[float, float]
    """Found in the first night, by drop."""
    within_five: Mapping[float, float]


@dataclass(frozen=True)
class Row:
    scenario: Scenario
    matrix_nights: int
    """That false alarms were counted in."""
    rules: Mapping[str, Rates]


SCENARIOS: tuple[Scenario, ...] = (
    *(Scenario("independent", noise, accepted) for noise in (0.003, 0.01, 0.03) for accepted in (1, 3, 10)),
    *(Scenario(kind, noise, 10) for kind in KINDS[1:] for noise in (0.01, 0.03)),
)


@dataclass(frozen=True)
class Creep:
    """What becomes of a drift by CREEP a night while every night is accepted as a baseline."""

    rules: Mapping[str, float | None]
    """The drop that the median figure had come to when it was found, by rule; None where most were not found in
    CREEP_NIGHTS nights."""


def creep(*, histories: int, seed: int) -> Creep:
    """Of ``histories`` matrices with independent noise of 1 %."""
    rng = np.random.default_rng([seed, len(SCENARIOS)])
    series = simulate(Scenario("independent", 0.01, ROLLING), histories, ROLLING + CREEP_NIGHTS, rng)
    series[..., ROLLING:, :] *= (1 - CREEP * np.arange(1, CREEP_NIGHTS + 1))[:, None]
    found = {}
    for name, rule in RULES.items():
        first = np.full(series.shape[:2], np.inf)
        for night in range(NIGHTS, CREEP_NIGHTS + 1):
            today = ROLLING + night
            hits = rule(series[..., : today - 1, 0], series[..., today - NIGHTS : today, :])[..., -1]
            first = np.where(hits & np.isinf(first), night * CREEP, first)
        median = float(np.median(first))
        found[name] = median if np.isfinite(median) else None
    return Creep(found)


def evaluate(scenarios: Sequence[Scenario] = SCENARIOS, *, nights: int, seed: int) -> Iterator[Row]:
    """One row a scenario, on about ``nights`` simulated nights of a matrix."""
    for number, scenario in enumerate(scenarios):
        rng = np.random.default_rng([seed, number])
        yield _row(scenario, max(1, round(nights / LOOKED_AT)), rng)


def simulate(scenario: Scenario, matrices: int, nights: int, rng: np.random.Generator) -> Array:
    """Tokens/s relative to the true mean; matrices x figures x nights x 2 (launch and relaunch)."""
    shape = (matrices, FIGURES, nights, 2)
    scale: float | Array = scenario.noise
    match scenario.kind:
        case "heavy tails":
            draws = rng.standard_t(3, shape) / np.sqrt(3)
        case "disturbed":
            draws = rng.standard_normal(shape) * np.where(rng.random(shape) < 0.05, 5, 1) / np.sqrt(0.95 + 0.05 * 25)
        case "correlated nights" | "night only" | "machine's nights":
            share = 1.0 if scenario.kind == "night only" else 0.5
            effects = 1 if scenario.kind == "machine's nights" else FIGURES
            draws = np.sqrt(share) * _autoregressive(0.5, (matrices, effects, nights), rng)[..., None]
            draws = draws + np.sqrt(1 - share) * rng.standard_normal(shape)
        case _:
            draws = rng.standard_normal(shape)
            if scenario.kind == "unlike cells":
                scale = scenario.noise * np.exp(rng.normal(0, np.log(2), (matrices, FIGURES, 1, 1)))
    return np.asarray(np.maximum(1 + scale * draws, 0.01))


def ours(base: Array, nights: Array, *, alpha: float, minimum_effect: float = DEFAULT_MINIMUM_EFFECT) -> Bools:
    """Confirmed breaches; base: ... x figures x accepted, nights: ... x figures x nights x 2.

    The result is for each night from the NIGHTS-th on.
    """
    mean = base.mean(axis=-1)[..., None]
    first = base[..., :FIRST_LAUNCHES].mean(axis=-1)[..., None]
    found = _limits(base, alpha=alpha, minimum_effect=minimum_effect)
    launch, relaunch = nights[..., 0], nights[..., 1]
    late = slice(NIGHTS - 1, None)
    both = [breaches_tonight(value[..., late] / mean - 1, found) for value in (launch, relaunch)]
    windows = np.lib.stride_tricks.sliding_window_view(launch / first - 1, NIGHTS, axis=-1)
    again = windows.copy()
    again[..., -1] = ((launch + relaunch) / 2 / first - 1)[..., late]
    over = [breaches_nights(values, found) for values in (windows, again)]
    return np.asarray((both[0] & both[1]) | (over[0] & over[1]))


def _limits(base: Array, *, alpha: float, minimum_effect: float) -> Limits:
    """With a last axis for the nights."""
    accepted = base.shape[-1]
    if accepted < SMALLEST_SAMPLE:
        noise, freedom = np.full(base.shape[:-1], ASSUMED_LAUNCH_NOISE), np.full(base.shape[:-1], np.inf)
        correlation = np.full(base.shape[:-1], UNKNOWN_CORRELATION)
    else:
        first = base[..., :FIRST_LAUNCHES]
        variances, lags = series_of(first)
        known = pooled(variances, lags, np.full(base.shape[-2], first.shape[-1]))
        noise, freedom, correlation = (
            part[..., None] for part in (known.noise, known.freedom, known.night_correlation)
        )
        pool = Pool(noise, freedom, correlation, known.figures)
        noise, freedom = moderated(variances, first.shape[-1], pool)
        correlation = np.broadcast_to(pool.night_correlation, noise.shape)
    return limits(
        noise=noise[..., None],
        freedom=freedom[..., None],
        night_correlation=correlation[..., None],
        launches=accepted,
        nights=NIGHTS,
        alpha=alpha,
        minimum_effect=minimum_effect,
    )


def _fixed(tolerance: float) -> Callable[[Array, Array], Bools]:
    return lambda base, nights: np.asarray(
        nights[..., NIGHTS - 1 :, 0] < (1 - tolerance) * base.mean(axis=-1)[..., None]
    )


def _last_ten(base: Array, nights: Array) -> tuple[Array, Array]:
    """Each night's value and the ROLLING before it; where there are fewer, the accepted ones are all there is."""
    series = np.concatenate([base[..., -ROLLING:], nights[..., 0]], axis=-1)
    looked = nights.shape[-2] - NIGHTS + 1
    length = min(ROLLING, series.shape[-1] - looked)
    windows = np.lib.stride_tricks.sliding_window_view(series, length, axis=-1)[..., -looked - 1 : -1, :]
    return nights[..., NIGHTS - 1 :, 0], windows


def _monitor(base: Array, nights: Array) -> Bools:
    value, before = _last_ten(base, nights)
    return np.asarray(value < 0.9 * before.mean(axis=-1))


def _rolling(base: Array, nights: Array) -> Bools:
    value, before = _last_ten(base, nights)
    return np.asarray(value < before.mean(axis=-1) - 3 * before.std(axis=-1, ddof=1))


RULES: Mapping[str, Callable[[Array, Array], Bools]] = {
    "mtpgate": lambda base, nights: ours(base, nights, alpha=alpha_for(FIGURES)),
    "fixed -3 %": _fixed(0.03),
    "fixed -5 %": _fixed(0.05),
    "-10 % of 10": _monitor,
    "-3 sd of 10": _rolling,
}


def _row(scenario: Scenario, matrices: int, rng: np.random.Generator) -> Row:
    quiet = NIGHTS - 1
    series = simulate(scenario, matrices, scenario.accepted + quiet + LOOKED_AT, rng)
    base, nights = series[..., : scenario.accepted, 0], series[..., scenario.accepted :, :]
    rules = {}
    for name, rule in RULES.items():
        alarms = rule(base, nights).any(axis=1)
        found = {drop: rule(base, _dropped(nights[..., : quiet + NIGHTS, :], drop)) for drop in DROPS}
        rules[name] = Rates(
            false_alarms=float(alarms.mean()),
            one_night={drop: float(hits[..., 0].mean()) for drop, hits in found.items()},
            within_five={drop: float(hits.any(axis=-1).mean()) for drop, hits in found.items()},
        )
    return Row(scenario, matrices * LOOKED_AT, rules)


def _dropped(nights: Array, drop: float) -> Array:
    slower = nights.copy()
    slower[..., NIGHTS - 1 :, :] *= 1 - drop
    return slower


def _autoregressive(correlation: float, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """AR(1) along the last axis, of variance 1."""
    series = rng.standard_normal(shape)
    for night in range(1, shape[-1]):
        series[..., night] *= np.sqrt(1 - correlation**2)
        series[..., night] += correlation * series[..., night - 1]
    return series
