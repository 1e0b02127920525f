"""Is a launch slower than its baseline? One rule.

The value of a launch is the median of its repeats, the baseline the accepted launches under the same key. A drop is a
**regression** if tonight's launch breaches, or the mean of the last nights does (:mod:`mtpgate.judge.rule`), and it
stands once a relaunch has confirmed it (:func:`confirm`). A rise beyond chance is an **improvement**. What is neither
is a **pass** only if a drop of the minimum effect could have been found (power 0.9), tonight or over the nights that
there are; otherwise it is **insufficient**, and the text says what could have been found and how many more launches or
nights would do.

Throughput at a concurrency = accept length / step time, so a change is split: the ratio of accept lengths, and the
ratio of step times that remains. The larger of their logarithms names what moved.

Parameters. ``minimum_effect``: the smallest drop worth an alarm, 3 % by default. ``alpha``: false-alarm rate of one
figure; :func:`alpha_for` makes one false alarm in a hundred nights of it (Bonferroni over the night's figures).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mtpgate.judge import verdict_words
from mtpgate.judge.baselines import BaselineLaunch
from mtpgate.judge.figures import Breach, Night, Nights, Split, State, Verdict
from mtpgate.judge.noise import ASSUMED_LAUNCH_NOISE, more_launches, noise_of
from mtpgate.judge.pool import FIRST_LAUNCHES, Pool
from mtpgate.judge.rule import FEWEST_NIGHTS, NIGHTS, Limits, breaches_nights, breaches_tonight
from mtpgate.load.measurement import Measurement

__all__ = ["DEFAULT_ALPHA", "Night", "Split", "State", "Verdict", "alpha_for", "confirm", "judge"]

DEFAULT_MINIMUM_EFFECT = 0.03
FALSE_ALARMS_A_NIGHT = 0.01
DEFAULT_ALPHA = FALSE_ALARMS_A_NIGHT / 40
"""For a night of 20 cells with two figures each."""


def alpha_for(figures: int) -> float:
    """The false-alarm rate of one of a night's ``figures`` (cells x workloads) for one false alarm in 100 nights."""
    return FALSE_ALARMS_A_NIGHT / max(1, figures)


def judge(
    measurement: Measurement,
    baseline_launches: Sequence[BaselineLaunch],
    *,
    minimum_effect: float = DEFAULT_MINIMUM_EFFECT,
    alpha: float = DEFAULT_ALPHA,
    assumed_launch_noise: float = ASSUMED_LAUNCH_NOISE,
    pool: Pool | None = None,
    nights: Sequence[Night] = (),
    first_launch: Measurement | None = None,
) -> Verdict:
    """Judge one launch's measurement against the accepted launches of its key, oldest first.

    ``assumed_launch_noise`` is the declared relative standard deviation between launches of this machine, ``pool`` what
    the matrix's figures tell of it. ``nights`` are the earlier runs since the first baseline, oldest first.
    ``first_launch`` is tonight's first, where this is its relaunch: the night's value is the mean of both.
    """
    value = measurement.output_tokens_per_second
    name = f"{measurement.cell_id} {measurement.workload}"
    if measurement.void is not None or not math.isfinite(value):
        return Verdict("void", f"{name}: void, not judged: {measurement.void or 'no repeat was measured'}", value)
    if not baseline_launches:
        return Verdict("no_baseline", f"{name}: {value:.1f} tok/s, no baseline to judge it by", value)
    repeats = [repeat.output_tokens_per_second for repeat in measurement.repeats]
    noise = noise_of(baseline_launches, repeats, alpha=alpha, assumed=assumed_launch_noise, pool=pool)
    series = [*nights[-(NIGHTS - 1) :], _tonight(measurement, first_launch)]
    found = noise.limits(alpha=alpha, minimum_effect=minimum_effect, nights=len(series))
    mean = statistics.fmean(launch.tokens_per_second for launch in baseline_launches)
    effect = value / mean - 1
    breaches: list[Breach] = ["tonight"] if bool(breaches_tonight(effect, found)) else []
    over = _nights(series, baseline_launches, found)
    first = over.first_mean if over is not None else mean
    if over is not None and bool(breaches_nights(np.array([n.tokens_per_second for n in series]) / first - 1, found)):
        breaches.append("nights")
    seen = noise.sees(minimum_effect, alpha=alpha, nights=len(series))
    verdict = Verdict(
        state=_state(breaches, effect, found, seen=seen),
        text="",
        value=value,
        baseline_n=len(baseline_launches),
        baseline_mean=mean,
        effect=effect,
        lower_bound=mean * (1 - float(found.limit)),
        noise=noise.relative,
        findable_drop=float(found.findable),
        more_launches=None if seen else more_launches(noise, minimum_effect, alpha=alpha),
        split=_split(value / mean, measurement.accept_length, baseline_launches),
        nights=over,
        breaches=tuple(breaches),
    )
    days = len({launch.when.date() for launch in baseline_launches})
    text = verdict_words.told(verdict, noise, found, minimum_effect=minimum_effect, days=days)
    return replace(verdict, text=f"{name}: {text}")


def confirm(first: Verdict, second: Verdict) -> Verdict:
    """What a relaunch makes of a regression: it stands if the same test breaches again, otherwise it is unstable."""
    if first.state != "regression":
        return first
    if second.state == "regression" and set(first.breaches) & set(second.breaches):
        return replace(second, text=f"{second.text}\nconfirmed by a relaunch; the first launch was {first.value:.1f}")
    shown = first if second.state == "void" else second
    return replace(shown, state="unstable", text=verdict_words.unstable(first, second), breaches=())


def _state(breaches: Sequence[Breach], effect: float, found: Limits, *, seen: bool) -> State:
    if breaches:
        return "regression"
    if effect > float(found.gain):
        return "improvement"
    return "pass" if seen else "insufficient"


def _tonight(measurement: Measurement, first_launch: Measurement | None) -> Night:
    launches = [measurement, *([first_launch] if first_launch is not None else [])]
    lengths = [launch.accept_length for launch in launches if launch.accept_length is not None]
    return Night(
        statistics.fmean(launch.output_tokens_per_second for launch in launches),
        statistics.fmean(lengths) if lengths else None,
    )


def _nights(series: Sequence[Night], baseline: Sequence[BaselineLaunch], found: Limits) -> Nights | None:
    if len(series) < FEWEST_NIGHTS:
        return None
    first = baseline[:FIRST_LAUNCHES]
    first_mean = statistics.fmean(launch.tokens_per_second for launch in first)
    mean = statistics.fmean(night.tokens_per_second for night in series)
    lengths = [night.accept_length for night in series if night.accept_length is not None]
    return Nights(
        count=len(series),
        mean=mean,
        first_n=len(first),
        first_mean=first_mean,
        effect=mean / first_mean - 1,
        lower_bound=first_mean * (1 - float(found.nights_limit)),
        chance=float(found.nights_chance),
        findable_drop=float(found.nights_findable),
        split=_split(mean / first_mean, statistics.fmean(lengths) if lengths else None, first),
    )


def _split(throughput: float, accept_length: float | None, baseline: Sequence[BaselineLaunch]) -> Split | None:
    before = [launch.accept_length for launch in baseline if launch.accept_length is not None]
    if accept_length is None or not before or throughput <= 0:
        return None
    acceptance = accept_length / statistics.fmean(before)
    return Split(throughput, acceptance, acceptance / throughput)
