"""How far a ratio of sums can be off by the choice of its prompts.

The accept length is a ratio of two sums, tokens / verify steps, over prompts. The steps of one answer are alike, and at
temperature 0 so are repeats of one prompt, so neither is a draw of its own: the **cluster** is the prompt, with the
sums over all that was asked with it.

Method. Delta method for a ratio of means (Cochran, Sampling Techniques, 3rd ed. 1977, section 6.4), on the logarithm:
with y_i tokens and x_i steps of prompt i, Y and X their sums over n prompts,

    log(Y / X) has variance  n / (n - 1) * sum (y_i / Y - x_i / X)^2
    interval   Y / X * exp(+- t(n - 1) * standard error)

Two ratios over the *same* prompts are compared in pairs: their difference of logarithms has the residuals
(y_i / Y - x_i / X) - (v_i / V - u_i / U), in which what makes a prompt easy or hard cancels. That finds a fall of 10 %
on a handful of prompts whose accept lengths differ by half.

Assumptions. Prompts are independent draws of what the figure is about; n is at least 2, and with so few the interval is
as wide as Student's t makes it. The logarithm keeps the interval above 0 and its coverage near nominal for the skewed
sums of few prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

CONFIDENCE = 0.95

SMALLEST_SAMPLE = 2
"""Prompts below which there is no spread to read."""


@dataclass(frozen=True)
class Interval:
    """A ratio with its two-sided confidence interval over ``clusters`` prompts."""

    value: float
    low: float
    high: float
    clusters: int

    def disjoint(self, other: Interval) -> bool:
        """Whether the two intervals have no value in common."""
        return self.low > other.high or other.low > self.high

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio_interval(pairs: Sequence[tuple[float, float]], *, confidence: float = CONFIDENCE) -> Interval | None:
    """The interval of sum(y) / sum(x) over clusters (y, x); None for fewer than two, or a sum that is 0."""
    total_y, total_x = sum(y for y, _ in pairs), sum(x for _, x in pairs)
    if len(pairs) < SMALLEST_SAMPLE or total_y <= 0 or total_x <= 0:
        return None
    residuals = [y / total_y - x / total_x for y, x in pairs]
    return _around(total_y / total_x, residuals, confidence)


def ratio_change(
    now: Sequence[tuple[float, float]], before: Sequence[tuple[float, float]], *, confidence: float = CONFIDENCE
) -> Interval | None:
    """The interval of (now's sum(y) / sum(x)) / (before's), cluster by cluster the same prompts in both.

    None for fewer than two clusters, or a sum that is 0. Raises ValueError if the two are not of one length.
    """
    if len(now) != len(before):
        raise ValueError(f"{len(now)} clusters cannot be paired with {len(before)}")
    sums = [sum(column) for pairs in (now, before) for column in zip(*pairs, strict=True)]
    if len(now) < SMALLEST_SAMPLE or min(sums) <= 0:
        return None
    y_now, x_now, y_before, x_before = sums
    residuals = [
        (y / y_now - x / x_now) - (v / y_before - u / x_before) for (y, x), (v, u) in zip(now, before, strict=True)
    ]
    return _around((y_now / x_now) / (y_before / x_before), residuals, confidence)


def _around(value: float, residuals: Sequence[float], confidence: float) -> Interval:
    n = len(residuals)
    error = math.sqrt(n / (n - 1) * math.fsum(residual**2 for residual in residuals))
    # Beyond e^700 a float overflows; a factor of e^20 is "not known" all the same.
    reach = min(20.0, float(special.stdtrit(n - 1, (1 + confidence) / 2)) * error)
    return Interval(value, value * math.exp(-reach), value * math.exp(reach), n)
