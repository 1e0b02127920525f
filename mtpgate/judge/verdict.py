"""Is a launch slower than its baseline? One rule, and the words that go with it.

The value of a launch is the median of its repeats, the baseline the accepted launches under the same key. A change is
a **regression** (or **improvement**) only if it is at least the declared minimum effect *and* outside what one new
launch shows by chance (:mod:`mtpgate.judge.noise`). What is not a change is a **pass** only if a drop of the minimum
effect could have been found (power 0.9); otherwise it is **insufficient**, and the text says what could have been
found and how many more launches would do.

Throughput at a concurrency = accept length / step time, so a change is split: the ratio of accept lengths, and the
ratio of step times that remains. The larger of their logarithms names what moved.

Parameters. ``minimum_effect``: the smallest drop worth an alarm, 3 % by default. ``alpha``: false-alarm rate of one
figure; :func:`alpha_for` makes one false alarm in a hundred nights of it (Bonferroni over the night's figures).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mtpgate.judge.baselines import BaselineLaunch
from mtpgate.judge.noise import ASSUMED_LAUNCH_NOISE, POWER, Noise, more_launches, noise_of
from mtpgate.load.measurement import Measurement

State = Literal["pass", "regression", "improvement", "unstable", "insufficient", "void", "no_baseline"]

DEFAULT_MINIMUM_EFFECT = 0.03
FALSE_ALARMS_A_NIGHT = 0.01
DEFAULT_ALPHA = FALSE_ALARMS_A_NIGHT / 40
"""For a night of 20 cells with two figures each."""

CLEAR_SHARE = 2 / 3
"""Share of a change (in logarithms) from which on one of its two factors is named as its cause."""


@dataclass(frozen=True)
class Split:
    """A change of throughput taken apart. All are ratios now / baseline."""

    throughput: float
    acceptance: float
    step_time: float
    """Above 1 is slower."""

    @property
    def moved(self) -> Literal["acceptance", "step time", "both"]:
        """What the change comes from."""
        accept, step = abs(math.log(self.acceptance)), abs(math.log(self.step_time))
        share = accept / (accept + step) if accept + step else 0.5
        if share >= CLEAR_SHARE:
            return "acceptance"
        return "step time" if share <= 1 - CLEAR_SHARE else "both"


@dataclass(frozen=True)
class Verdict:
    """The judgement of one figure. Values are output tokens/s, ratios are relative to the baseline's mean."""

    state: State
    text: str
    """All figures in words: what an assertion shows."""
    value: float
    baseline_n: int = 0
    baseline_mean: float | None = None
    effect: float | None = None
    """Value / mean - 1; negative is slower."""
    lower_bound: float | None = None
    """Tokens/s below which a drop is no chance."""
    noise: float | None = None
    """Relative standard deviation of a launch that the bound rests on."""
    findable_drop: float | None = None
    """The smallest drop, as a ratio, that would have been found with probability 0.9."""
    more_launches: int | None = None
    """How many more accepted launches would make the minimum effect findable; None if not needed or hopeless."""
    split: Split | None = None

    @property
    def red(self) -> bool:
        return self.state == "regression"

    @property
    def green(self) -> bool:
        """Judged and found good; neither red nor green is "not known", which must be shown as such."""
        return self.state in ("pass", "improvement")


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
) -> Verdict:
    """Judge one launch's measurement against the accepted launches of its key.

    ``assumed_launch_noise`` is the declared relative standard deviation between launches of this machine.
    """
    value = measurement.output_tokens_per_second
    name = f"{measurement.cell_id} {measurement.workload}"
    if measurement.void is not None or not math.isfinite(value):
        return Verdict("void", f"{name}: void, not judged: {measurement.void or 'no repeat was measured'}", value)
    if not baseline_launches:
        return Verdict("no_baseline", f"{name}: {value:.1f} tok/s, no baseline to judge it by", value)
    repeats = [repeat.output_tokens_per_second for repeat in measurement.repeats]
    noise = noise_of(baseline_launches, repeats, alpha=alpha, assumed=assumed_launch_noise)
    mean = statistics.fmean(launch.tokens_per_second for launch in baseline_launches)
    effect = value / mean - 1
    verdict = Verdict(
        state=_state(effect, noise, minimum_effect),
        text="",
        value=value,
        baseline_n=len(baseline_launches),
        baseline_mean=mean,
        effect=effect,
        lower_bound=mean * (1 - max(noise.margin, minimum_effect)),
        noise=noise.relative,
        findable_drop=noise.findable_drop,
        more_launches=(
            more_launches(noise, minimum_effect, alpha=alpha) if noise.findable_drop > minimum_effect else None
        ),
        split=_split(measurement, baseline_launches, value / mean),
    )
    return replace(verdict, text=f"{name}: {_words(verdict, noise, minimum_effect)}")


def confirm(first: Verdict, second: Verdict) -> Verdict:
    """What a relaunch makes of a regression: it stands if both launches breach, otherwise it is unstable."""
    if first.state != "regression":
        return first
    if second.state == "regression":
        return replace(second, text=f"{second.text}\nconfirmed by a relaunch; the first launch: {first.text}")
    return replace(
        second,
        state="unstable",
        text=f"unstable: a launch breached and its relaunch did not.\n1st: {first.text}\n2nd: {second.text}",
    )


def _state(effect: float, noise: Noise, minimum_effect: float) -> State:
    threshold = max(noise.margin, minimum_effect)
    if effect < -threshold:
        return "regression"
    if effect > threshold:
        return "improvement"
    return "insufficient" if noise.findable_drop > minimum_effect else "pass"


def _split(measurement: Measurement, baseline: Sequence[BaselineLaunch], throughput: float) -> Split | None:
    before = [launch.accept_length for launch in baseline if launch.accept_length is not None]
    if measurement.accept_length is None or not before or throughput <= 0:
        return None
    acceptance = measurement.accept_length / statistics.fmean(before)
    return Split(throughput, acceptance, acceptance / throughput)


def _words(verdict: Verdict, noise: Noise, minimum_effect: float) -> str:
    assert verdict.effect is not None
    assert verdict.lower_bound is not None
    launches = f"{noise.launches} launch" + ("es" if noise.launches > 1 else "")
    direction = "below" if verdict.effect < 0 else "above"
    lines = [
        f"{verdict.state}: {verdict.value:.1f} tok/s is {abs(verdict.effect):.1%} {direction} the baseline's "
        f"{verdict.baseline_mean:.1f} ({launches})",
        f"  bound {verdict.lower_bound:.1f} tok/s ({max(noise.margin, minimum_effect):.1%} below): chance explains "
        f"{noise.margin:.1%} (launch noise {noise.source}), minimum effect {minimum_effect:.1%}",
    ]
    if verdict.split is not None:
        split = verdict.split
        lines.append(
            f"  accept length x{split.acceptance:.3f}, step time x{split.step_time:.3f}: "
            + (f"{split.moved} moved" if verdict.state in ("regression", "improvement") else "no change to explain")
        )
    elif verdict.state in ("regression", "improvement"):
        lines.append("  no accept lengths on both sides: all of it counts as step time")
    if verdict.state in ("pass", "insufficient"):
        lines.append(
            f"  a drop of {noise.findable_drop:.1%} would have been found (power {POWER:g})" + _cure(verdict, noise)
        )
    if verdict.state == "improvement":
        lines.append("  the baseline is stale: accept this launch, with the reason for the gain")
    return "\n".join(lines)


def _cure(verdict: Verdict, noise: Noise) -> str:
    if verdict.state == "pass":
        return ""
    if verdict.more_launches is not None:
        plural = "es" if verdict.more_launches > 1 else ""
        return f", a smaller one not reliably: accept {verdict.more_launches} more launch{plural}"
    if not noise.estimated:
        return ", a smaller one not reliably: accept more launches, until their own spread replaces the declared noise"
    return ", a smaller one not reliably: too noisy for the declared minimum effect; quiet the machine or raise it"
