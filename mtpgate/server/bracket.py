"""Where the largest memory fraction that starts can still be: a bisection that diagnoses steer and launches decide.

The fractions are steps of a resolution (0.01: step 62 is 0.62). Workable ones lie in one interval: below it the KV pool
does not fit, above it nothing is left for graphs and activations. ``floor`` and ``high`` come from launches alone. What
a diagnosis computes (its ``max``, ``min`` and ``suggested`` fractions) only chooses the next step to launch, and
an estimated end is confirmed by one launch beyond it; once a launch refutes an estimate, none is used any more.
So the search ends for any diagnoses, and what it reports was launched.

Example: 0.70 runs out of memory, which leaves 0.645 at most and suggests 0.62. 0.62 and 0.64 start, and 0.65 is
launched to be sure.
"""

from __future__ import annotations

import math

ROUNDING = 1e-6
"""Of a step: 0.62 / 0.01 is not quite 62."""


class Bracket:
    """The state of one search; ``resolution`` is a fraction (0.01)."""

    def __init__(self, resolution: float) -> None:
        self.resolution = resolution
        self.low = 0
        """The largest step that is too low (0: none was launched)."""
        self.high = math.ceil(1 / resolution - ROUNDING)
        """The smallest step that is too high (its first value is 1.0, which SGLang refuses)."""
        self.top = self.high
        self.best: int | None = None
        """The largest step that started."""
        self._most: int | None = None
        self._least: int | None = None
        self._suggested: int | None = None
        self._trusted = True

    def step(self, fraction: float) -> int:
        """The step at or just below a fraction, within those that can be launched."""
        return min(max(math.floor(fraction / self.resolution + ROUNDING), 1), self.top - 1)

    def fraction(self, step: int) -> float:
        return round(step * self.resolution, 6)

    @property
    def floor(self) -> int:
        """What is sought lies above this step, or is this step."""
        return self.low if self.best is None else self.best

    def started(self, step: int) -> None:
        self.best = step if self.best is None else max(self.best, step)
        if (self._most is not None and self._most < step) or (self._least is not None and self._least > step):
            self._distrust()

    def too_high(self, step: int, *, most: float | None = None, suggested: float | None = None) -> None:
        """It ran out of memory at ``step``; by its diagnosis ``most`` is the largest fraction that can work."""
        self.high = min(self.high, step)
        if most is not None and self._trusted:
            bound = min(math.floor(most / self.resolution + ROUNDING), step - 1)
            self._most = bound if self._most is None else min(self._most, bound)
        self._suggest(suggested)

    def too_low(self, step: int, *, least: float | None = None, suggested: float | None = None) -> None:
        """The pool did not fit at ``step``; by its diagnosis ``least`` is the smallest fraction that can work.

        Not once any fraction has started: the search goes upwards from there.
        """
        self.low = max(self.low, step)
        if least is not None and self._trusted:
            bound = max(math.ceil(least / self.resolution - ROUNDING), step + 1)
            self._least = bound if self._least is None else max(self._least, bound)
        self._suggest(suggested)

    def next(self) -> int | None:
        """The step to launch now; None if the largest workable step, or that there is none, is known."""
        first, last = self.floor + 1, self.high - 1
        if first > last:
            return None
        most = last if self._most is None else min(self._most, last)
        least = first if self._least is None or self.best is not None else max(self._least, first)
        if self.best is not None and most < first:
            return first  # The estimated end is reached: one launch beyond it confirms it.
        if least > most:
            # By the estimates nothing can work, which is for launches to show.
            self._distrust()
            least, most = first, last
        suggested, self._suggested = self._suggested, None
        if suggested is not None and least <= suggested <= most:
            return suggested
        return (least + most + 1) // 2

    def _suggest(self, fraction: float | None) -> None:
        self._suggested = self.step(fraction) if fraction is not None and self._trusted else None

    def _distrust(self) -> None:
        self._trusted = False
        self._most = self._least = self._suggested = None
