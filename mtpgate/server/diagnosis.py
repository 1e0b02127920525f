"""What is said of a launch that failed. The vocabulary of ``phase`` and ``kind`` is a contract for scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from mtpgate.matrix.vocabulary import Kind, Phase
from mtpgate.server.budget import Budget

PHASES: tuple[Phase, ...] = get_args(Phase)

MEMORY_KINDS: frozenset[Kind] = frozenset(
    {"oom_graph_capture", "oom_serving", "oom_draft_weights", "not_enough_memory", "oom_weights"}
)
"""Failures that another memory fraction, another graph limit or more GPUs could mend."""


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
    """Largest workable fraction, all else as it was (capture OOM)."""
    min: float | None = None
    """Smallest workable fraction (the pool does not fit)."""
    other: tuple[str, ...] = ()
    """Knobs that are right to change too, by SGLang's flag (or environment variable)."""
    suggested: float | None = None
    """The fraction to try next: within the bound by ``margin_gib``."""
    margin_gib: float | None = None
    graph_max_bs: int | None = None
    """A graph batch limit that alone should do, by estimate; None where none does or the log does not tell."""
    kv_tokens: int | None = None
    """KV tokens that are left at ``suggested``."""
    kv_tokens_lost: int | None = None
    change: Mapping[str, float | int] = field(default_factory=dict)
    """The smallest change to try, by ServerArgs name: what ``--fit`` relaunches with."""
    text: tuple[str, ...] = ()
    """The advice in sentences, the most useful first."""


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
    budget: Budget = field(default_factory=Budget)
    unmatched: tuple[Evidence, ...] = ()
    """Lines that look like a phase of the start-up and match no known format: this suite may be too old for them."""
