"""What fits: relaunch a server that ran out of memory with the change that its diagnosis advises.

Launching is passed in as a callable (:data:`Launcher`), so that this logic runs without a server. What is found is
advice and never a pass: the cell asks for the arguments that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from mtpgate.server.budget import Budget
from mtpgate.server.diagnosis import MEMORY_KINDS, Diagnosis

MOST_RELAUNCHES = 3
"""Each start of a large model takes minutes; the advice of a diagnosis that failed three times is wrong."""

Change = Mapping[str, float | int]
"""What a launch has otherwise than its cell, by ServerArgs name."""


@dataclass(frozen=True)
class Trial:
    """What one launch came to. It is over: a server that got ready was stopped at once."""

    ready: bool
    seconds: float
    """Until it was ready, or until the failure was known."""
    diagnosis: Diagnosis
    """Of kind ``ok`` for a server that got ready; its budget is that of the launch."""
    max_running_requests: int | None = None
    """As a ready server reported it: larger graphs would never be replayed."""


Launcher = Callable[[Change], Trial]
"""Launches the cell with a change, and stops it. What it raises (Ctrl-C too) ends a fit."""


@dataclass(frozen=True)
class FitAttempt:
    """One launch of a fit, as it is shown and kept."""

    change: Change
    state: Literal["ready", "failed"]
    seconds: float
    text: str
    """What it came to, in one line."""
    budget: Budget = field(default_factory=Budget)


def attempt(change: Change, trial: Trial) -> FitAttempt:
    """The record of a launch."""
    return FitAttempt(
        dict(change), "ready" if trial.ready else "failed", trial.seconds, outcome(trial), trial.diagnosis.budget
    )


def outcome(trial: Trial) -> str:
    """``starts``, or the kind of failure, its phase and rank, and the request that failed (GiB)."""
    found = trial.diagnosis
    if trial.ready:
        return "starts"
    text = f"{found.kind} in {found.phase}" + (f" on {found.rank}" if found.rank else "")
    tried, free = found.numbers.get("tried"), found.numbers.get("free")
    if isinstance(tried, float | int) and isinstance(free, float | int):
        text += f": {tried:.2f} GiB wanted, {free:.2f} free"
    return text


def shown(change: Change) -> str:
    """``mem_fraction_static=0.62, cuda_graph_max_bs=16``; ``as the cell has it`` without a change."""
    return ", ".join(f"{name}={value:g}" for name, value in change.items()) or "as the cell has it"


@dataclass(frozen=True)
class Refit:
    """The relaunches after a memory failure, and the change with which the server starts."""

    attempts: tuple[FitAttempt, ...]
    fits: Change | None
    """None: nothing that was tried starts."""
    why: str
    """Why there was no further relaunch."""

    @property
    def text(self) -> str:
        """For a person: a line for each relaunch, then what fits."""
        tried = [f"  {shown(item.change)}: {item.text} ({item.seconds:.1f} s)" for item in self.attempts]
        if self.fits is not None:
            end = f"fit: it starts with {shown(self.fits)}"
        else:
            end = f"fit: nothing that was tried starts ({self.why})"
        return "\n".join([end, *tried])


def refit(
    diagnosis: Diagnosis,
    launch: Launcher,
    *,
    most: int = MOST_RELAUNCHES,
    on_try: Callable[[int, Change], None] | None = None,
) -> Refit:
    """Relaunch with ``advice.change`` of ``diagnosis``, then of each relaunch's own, merged on top of each other.

    Ends when a server gets ready, after ``most`` relaunches, at a failure that is not one of memory, and where the
    latest diagnosis advises no change or one that was tried. ``on_try`` is told the number of each relaunch (from 1)
    and its change, before it begins.
    """
    attempts: list[FitAttempt] = []
    change: Change = {}

    def ended(why: str, fits: Change | None = None) -> Refit:
        return Refit(tuple(attempts), fits, why)

    while len(attempts) < most:
        if diagnosis.kind not in MEMORY_KINDS:
            return ended(f"{diagnosis.kind} in {diagnosis.phase} is no failure of memory")
        if not diagnosis.advice.change:
            return ended("no change is advised")
        change = {**change, **diagnosis.advice.change}
        if any(change == item.change for item in attempts):
            return ended(f"the advice repeats: {shown(change)}")
        if on_try is not None:
            on_try(len(attempts) + 1, change)
        trial = launch(change)
        attempts.append(attempt(change, trial))
        if trial.ready:
            return ended("it starts", change)
        diagnosis = trial.diagnosis
    return ended(f"{most} relaunches")
