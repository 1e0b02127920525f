"""The largest memory fraction, and then the largest graph batch limit, with which a cell's server starts.

The fraction is found by bisection (:mod:`mtpgate.server.bracket`). Then the graph batch limit is raised at that
fraction as far as it goes; or, where no fraction starts with the cell's limit, it is lowered at the smallest fraction
whose KV pool fits. Each launch of a large model takes minutes, so the number of launches is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from mtpgate.server.bracket import Bracket
from mtpgate.server.diagnosis import MEMORY_KINDS, Diagnosis
from mtpgate.server.fit import Change, FitAttempt, Launcher, Trial, attempt, outcome, shown

FRACTION = "mem_fraction_static"
GRAPH_LIMIT = "cuda_graph_max_bs"
RESOLUTION = 0.01
MOST_LAUNCHES = 12
"""Plain bisection of 0..1 to 0.01 takes 7, a limit among SGLang's usual batch sizes 3."""
FIRST_FRACTION = 0.85
"""Launched first for a cell that names none: in the range of what SGLang itself chooses (0.8 to 0.9)."""
LARGEST_LIMIT = 512
"""SGLang's own largest default graph batch size (``srt/server_args.py``, 0.5.x)."""

Ended = Literal["found", "nothing", "launches", "failure", "interrupted"]


@dataclass(frozen=True)
class Refused:
    """A launch that had no room, at the fraction or limit that it was launched with."""

    value: float
    text: str


@dataclass(frozen=True)
class Found:
    """What a search came to. Nothing is reported as starting that was not launched and got ready."""

    attempts: tuple[FitAttempt, ...]
    ended: Ended
    why: str
    """Why the search ended, in one sentence."""
    resolution: float = RESOLUTION
    fraction: float | None = None
    """The largest fraction that started."""
    refused: Refused | None = None
    """The smallest launched fraction above it that ran out of memory."""
    too_low: Refused | None = None
    """The largest launched fraction whose pool did not fit."""
    graph_max_bs: int | None = None
    """The largest graph batch limit that started at :attr:`fraction`; None: not asked."""
    graph_refused: Refused | None = None

    @property
    def exact(self) -> bool:
        """Whether the fraction is known to one step of the resolution."""
        return (
            self.fraction is not None
            and self.refused is not None
            and self.refused.value - self.fraction < 1.5 * self.resolution
        )


class Stopped(Exception):
    """A search ends before it has its answer."""

    def __init__(self, ended: Ended, why: str) -> None:
        super().__init__(why)
        self.ended: Ended = ended
        self.why = why


def search(
    launch: Launcher,
    *,
    fraction: float | None = None,
    graph_max_bs: int | None = None,
    resolution: float = RESOLUTION,
    max_launches: int = MOST_LAUNCHES,
    on_try: Callable[[int, Change, str], None] | None = None,
    on_tried: Callable[[FitAttempt], None] | None = None,
) -> Found:
    """Search from the cell's own ``fraction`` and graph batch limit (None: it names none; no limit is sought then,
    unless a capture tells the batch sizes).

    ``on_try`` is told the number of each launch (from 1), its change, and in words what is known so far;
    ``on_tried`` its record. A failure that is not one of memory, ``max_launches`` and Ctrl-C end it with what is known.
    """
    return _Search(launch, graph_max_bs, resolution, max_launches, on_try, on_tried).run(fraction)


def direction(diagnosis: Diagnosis) -> Literal["lower", "raise"] | None:
    """Which way the fraction must go after a memory failure; None where no fraction helps."""
    if diagnosis.kind not in MEMORY_KINDS:
        return None
    if any("Tried to allocate" in item.text for item in diagnosis.evidence) and diagnosis.phase == "kv_pool":
        return "lower"  # The pool was sized, and then not to be had: it is too large, not too small.
    if diagnosis.advice.mem_fraction_static is not None:
        return diagnosis.advice.mem_fraction_static
    if diagnosis.kind == "not_enough_memory":
        return "raise"
    if diagnosis.kind == "oom_weights" or (diagnosis.kind == "oom_draft_weights" and diagnosis.budget.draft_counted):
        return None  # Weights come before the pool, whatever the fraction.
    return "lower"


class _Search:
    def __init__(
        self,
        launch: Launcher,
        graph_max_bs: int | None,
        resolution: float,
        max_launches: int,
        on_try: Callable[[int, Change, str], None] | None,
        on_tried: Callable[[FitAttempt], None] | None,
    ) -> None:
        self.launch = launch
        self.own_limit = graph_max_bs
        self.bracket = Bracket(resolution)
        self.max_launches = max_launches
        self.on_try = on_try
        self.on_tried = on_tried
        self.attempts: list[FitAttempt] = []
        self.refused: Refused | None = None
        self.too_low: Refused | None = None
        self.ready: tuple[float, Trial] | None = None
        self.limit: int | None = None
        self.limit_refused: Refused | None = None

    def run(self, fraction: float | None) -> Found:
        try:
            self._fraction(FIRST_FRACTION if fraction is None else fraction)
            self._limit()
        except Stopped as stop:
            return self._found(stop.ended, stop.why)
        except KeyboardInterrupt:
            return self._found("interrupted", "interrupted")
        if self.ready is None:
            return self._found("nothing", "no fraction starts")
        return self._found("found", "the largest fraction is known")

    def _found(self, ended: Ended, why: str) -> Found:
        return Found(
            attempts=tuple(self.attempts),
            ended=ended,
            why=why,
            resolution=self.bracket.resolution,
            fraction=None if self.ready is None else self.ready[0],
            refused=self.refused,
            too_low=self.too_low,
            graph_max_bs=self.limit,
            graph_refused=self.limit_refused,
        )

    def _fraction(self, first: float) -> None:
        bracket = self.bracket
        step: int | None = bracket.step(first)
        while step is not None:
            value = bracket.fraction(step)
            trial = self._try({FRACTION: value})
            advice, way = trial.diagnosis.advice, direction(trial.diagnosis)
            if trial.ready:
                bracket.started(step)
                self.ready = (value, trial)
            # With less of it started, it cannot be too low: the memory was not as free as before.
            elif way == "raise" and self.ready is None:
                bracket.too_low(step, least=advice.min, suggested=advice.suggested)
                self.too_low = Refused(value, outcome(trial))
            elif way is not None:
                bracket.too_high(step, most=advice.max, suggested=advice.suggested)
                self.refused = Refused(value, outcome(trial))
            else:
                raise Stopped("failure", f"no fraction helps against {outcome(trial)}")
            step = bracket.next()

    def _limit(self) -> None:
        if self.ready is not None:
            fraction, trial = self.ready
            own = self.own_limit or _largest_captured(trial)
            if own is None:
                return
            self.limit = own
            larger = _limits_above(own, trial.max_running_requests)
            self._largest_limit(fraction, larger)
        elif self.own_limit is not None and self.refused is not None:
            fraction = self.refused.value
            self._largest_limit(fraction, _limits_below(self.own_limit))

    def _largest_limit(self, fraction: float, candidates: Sequence[int]) -> None:
        """Bisect ascending ``candidates``; with none of them the cell's own limit stays what it was found to be."""
        low, high = -1, len(candidates)
        while high - low > 1:
            middle = (low + high) // 2
            trial = self._try({FRACTION: fraction, GRAPH_LIMIT: candidates[middle]})
            if trial.ready:
                low, self.limit, self.ready = middle, candidates[middle], (fraction, trial)
            else:
                high, self.limit_refused = middle, Refused(candidates[middle], outcome(trial))

    def _try(self, change: Change) -> Trial:
        if len(self.attempts) >= self.max_launches:
            raise Stopped("launches", f"{self.max_launches} launches are used up")
        if self.on_try is not None:
            self.on_try(len(self.attempts) + 1, change, self._known())
        trial = self.launch(change)
        self.attempts.append(attempt(change, trial))
        if self.on_tried is not None:
            self.on_tried(self.attempts[-1])
        if not trial.ready and trial.diagnosis.kind not in MEMORY_KINDS:
            raise Stopped("failure", f"with {shown(change)} it fails otherwise: {trial.diagnosis.summary}")
        return trial

    def _known(self) -> str:
        return interval(self._found("found", ""))


def interval(found: Found) -> str:
    """``0.55 starts, 0.70 does not``: what launches have shown of the fraction."""
    parts = []
    if found.too_low is not None and found.fraction is None:
        parts.append(f"{found.too_low.value:g} is too low")
    if found.fraction is not None:
        parts.append(f"{found.fraction:g} starts")
    if found.refused is not None:
        parts.append(f"{found.refused.value:g} does not" if found.fraction else f"{found.refused.value:g} is too high")
    return ", ".join(parts) or "nothing is known yet"


def _largest_captured(trial: Trial) -> int | None:
    sizes = [size for group in trial.diagnosis.budget.graph_batch_sizes.values() for size in group]
    return max(sizes, default=None)


def _limits_above(own: int, most: int | None) -> list[int]:
    """Doublings of the limit up to what the server runs at once, that number itself included."""
    end = min(most or LARGEST_LIMIT, LARGEST_LIMIT)
    doubled = [own * 2**power for power in range(1, 12) if own * 2**power < end]
    return [*doubled, end] if end > own else doubled


def _limits_below(own: int) -> list[int]:
    """The sizes that SGLang captures below a limit: 1, 2, 4, then every eighth."""
    return [size for size in (1, 2, 4, *range(8, own, 8)) if size < own]
