"""The phases of one start-up: when each began and ended, and the memory around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mtpgate.matrix.vocabulary import Phase
from mtpgate.server.phase_table import Edge


@dataclass(frozen=True)
class PhaseEvent:
    """A phase began or ended on a rank. Memory in GiB (SGLang prints "GB"), times in seconds."""

    phase: Phase
    edge: Edge
    rank: str | None
    offset_seconds: float
    """Since the launch (live) or since the first dated line (file)."""
    available_gib: float | None = None
    usage_gib: float | None = None
    elapsed_seconds: float | None = None
    """As SGLang itself measured it; only on some end lines."""


@dataclass(frozen=True)
class PhaseSpan:
    """One stretch of a phase: from the first rank that began it to the last that ended it."""

    phase: Phase
    begin_seconds: float
    end_seconds: float | None = None
    """None: still in it when the log ended."""
    memory_before_gib: float | None = None
    """Least available memory over the ranks at the begin; None where the line does not say."""
    memory_after_gib: float | None = None
    usage_gib: float | None = None
    """Largest ``mem usage`` over the ranks."""

    @property
    def seconds(self) -> float | None:
        return None if self.end_seconds is None else self.end_seconds - self.begin_seconds


@dataclass(frozen=True)
class Timeline:
    """The phases of one start-up, in order of their begin. One may occur twice (the target's and the draft's pool)."""

    phases: tuple[PhaseSpan, ...] = ()
    by_rank: dict[str | None, tuple[PhaseSpan, ...]] = field(default_factory=dict)

    def find(self, phase: Phase) -> PhaseSpan | None:
        """The first stretch of ``phase``, None if it was never reached."""
        return next((span for span in self.phases if span.phase == phase), None)

    def reached(self, phase: Phase) -> bool:
        return self.find(phase) is not None


def merge(spans: Sequence[PhaseSpan]) -> PhaseSpan:
    """One span of a phase from those of its ranks."""
    ends = [span.end_seconds for span in spans]
    closed = [end for end in ends if end is not None]
    before = [span.memory_before_gib for span in spans if span.memory_before_gib is not None]
    after = [span.memory_after_gib for span in spans if span.memory_after_gib is not None]
    usage = [span.usage_gib for span in spans if span.usage_gib is not None]
    return PhaseSpan(
        spans[0].phase,
        min(span.begin_seconds for span in spans),
        max(closed) if len(closed) == len(ends) else None,
        min(before, default=None),
        min(after, default=None),
        max(usage, default=None),
    )
