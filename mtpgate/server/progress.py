"""Where a launch is, for a person who waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from mtpgate.matrix.vocabulary import Phase


@dataclass(frozen=True)
class Progress:
    """Where a launch is, about every second."""

    cell_id: str
    phase: Phase
    phase_seconds: float
    total_seconds: float
    last_line: str
    silent_seconds: float = 0.0
    """Since the log grew."""
    silence_limit: float | None = None
    """Seconds without a sign of life after which it counts as stalled, by what its processes do now."""
