"""The values of a verdict. Speeds are output tokens/s; effects, drops and noise are relative to the baseline's mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

State = Literal["pass", "regression", "improvement", "unstable", "insufficient", "void", "no_baseline"]
Breach = Literal["tonight", "nights"]

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
class Night:
    """What a cell came to in one earlier run at one workload: the mean of its launches."""

    tokens_per_second: float
    accept_length: float | None = None


@dataclass(frozen=True)
class Nights:
    """The mean of the last nights against the first accepted launches."""

    count: int
    """With tonight."""
    mean: float
    first_n: int
    first_mean: float
    effect: float
    lower_bound: float
    """Tokens/s; below it the nights breach."""
    chance: float
    findable_drop: float
    split: Split | None


@dataclass(frozen=True)
class Verdict:
    """The judgement of one figure."""

    state: State
    text: str
    """All figures in words: what an assertion shows."""
    value: float
    baseline_n: int = 0
    baseline_mean: float | None = None
    effect: float | None = None
    """Value / mean - 1; negative is slower."""
    lower_bound: float | None = None
    """Tokens/s below which tonight's launch breaches."""
    noise: float | None = None
    """Relative standard deviation of a launch that the bound rests on."""
    findable_drop: float | None = None
    """The smallest drop that would have been found tonight with probability 0.9."""
    more_launches: int | None = None
    """How many more accepted launches would make the minimum effect findable (0: more nights will do); None if not
    needed or hopeless."""
    split: Split | None = None
    nights: Nights | None = None
    """None before there are two."""
    breaches: tuple[Breach, ...] = ()
    """What a relaunch has to confirm."""

    @property
    def red(self) -> bool:
        return self.state == "regression"

    @property
    def green(self) -> bool:
        """Judged and found good; neither red nor green is "not known", which must be shown as such."""
        return self.state in ("pass", "improvement")
