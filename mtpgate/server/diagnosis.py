"""What is said of a launch that failed. The vocabulary of ``phase`` and ``kind`` is a contract for scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from mtpgate.matrix.vocabulary import Kind, Phase

PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class Evidence:
    """One line of the server's log: its 1-based number and its text without control characters."""

    line: int
    text: str


@dataclass(frozen=True)
class Advice:
    """The change that should help: the direction of the memory fraction with its bound, and other flags."""

    mem_fraction_static: Literal["lower", "raise"] | None = None
    max: float | None = None
    min: float | None = None
    other: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """Phase, kind, first failing rank, the numbers that the log shows (GiB), advice and evidence."""

    phase: Phase
    kind: Kind
    summary: str
    """One sentence for a person: what failed, where, and what to do next."""
    rank: str | None = None
    numbers: Mapping[str, object] = field(default_factory=dict)
    advice: Advice = field(default_factory=Advice)
    not_advice: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
