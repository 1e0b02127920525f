"""How many tokens a verify step yields, from counts, and whether that is plausible and enough.

Accept length = completion tokens / verify steps, over all requests. The printed rate changed its meaning between
SGLang versions and is not used. What the quotient includes (SGLang 0.5.23):

* the bonus token of each step, so 1 means that no draft was accepted;
* the token of the prefill, which no verify step yields, and the step cut at max_new_tokens: with no draft accepted at
  all, an answer of 24 tokens reads 24 / 23 = 1.04. So "nothing was ever accepted" is told from the counts
  (completion tokens - 1 <= verify steps), not from the quotient being exactly 1.00;
* an upper end of num_steps + 1 tokens a step. More than that means that the counts are wrong.

Requests of one token have no verify step and are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mtpgate.load.prompts import kind_of
from mtpgate.matrix.cell import Cell

SHORTEST_COUNTED = 2
"""Answers below this many tokens have no verify step."""


class Answered(Protocol):
    """What acceptance is read from: a request of a load, or an answer of the parity suite."""

    @property
    def prompt_id(self) -> str: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def meta(self) -> Mapping[str, object]: ...


@dataclass(frozen=True)
class AcceptanceCounts:
    """Sums over some requests."""

    requests: int = 0
    completion_tokens: int = 0
    verify_steps: int = 0
    proposed: int = 0
    """Draft tokens proposed, 0 if the server does not say; with topk > 1 all nodes of the tree."""
    correct: int = 0
    """Draft tokens accepted, as the server counts them; 0 if it does not say."""

    def plus(self, tokens: int, meta: Mapping[str, object]) -> AcceptanceCounts:
        return AcceptanceCounts(
            self.requests + 1,
            self.completion_tokens + tokens,
            self.verify_steps + (_count(meta, "spec_verify_ct") or 0),
            self.proposed + (_count(meta, "spec_num_proposed_drafts") or 0),
            self.correct + (_count(meta, "spec_num_correct_drafts") or 0),
        )

    @property
    def accept_length(self) -> float | None:
        """Tokens a verify step, bonus token included; None without a verify step."""
        return self.completion_tokens / self.verify_steps if self.verify_steps else None

    @property
    def accept_rate(self) -> float | None:
        """Accepted / proposed draft tokens; None if the server does not count proposals."""
        return self.correct / self.proposed if self.proposed else None

    @property
    def nothing_accepted(self) -> bool:
        """No verify step of any request yielded more than its bonus token."""
        return self.verify_steps > 0 and self.completion_tokens - self.requests <= self.verify_steps


@dataclass(frozen=True)
class AcceptanceReport:
    """The acceptance of a cell: figures, and findings that a test should fail on."""

    cell_id: str
    overall: AcceptanceCounts
    by_kind: Mapping[str, AcceptanceCounts] = field(default_factory=dict)
    floor: float | None = None
    findings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def accept_length(self) -> float | None:
        return self.overall.accept_length

    def message(self) -> str:
        """The figures, by kind, then the findings."""
        length = self.accept_length
        if length is None:
            head = f"{self.cell_id}: no accept length"
        else:
            floor = "no floor" if self.floor is None else f"floor {self.floor:.2f}"
            head = (
                f"{self.cell_id}: accept length {length:.2f} tokens a verify step ({floor}; "
                f"{self.overall.completion_tokens} tokens, {self.overall.verify_steps} steps)"
            )
        kinds = ", ".join(f"{kind} {counts.accept_length or 0:.2f}" for kind, counts in sorted(self.by_kind.items()))
        return "\n".join(
            [head, *([f"  by kind: {kinds}"] if kinds else []), *(f"  - {text}" for text in self.findings)]
        )


def judge_acceptance(cell: Cell, records: Iterable[Answered]) -> AcceptanceReport:
    """The acceptance over these requests against what the cell is and the floor that its matrix sets."""
    counted = [record for record in records if record.output_tokens >= SHORTEST_COUNTED]
    with_steps = [record for record in counted if _count(record.meta, "spec_verify_ct")]
    overall = AcceptanceCounts()
    by_kind: defaultdict[str, AcceptanceCounts] = defaultdict(AcceptanceCounts)
    for record in with_steps:
        overall = overall.plus(record.output_tokens, record.meta)
        kind = kind_of(record.prompt_id)
        by_kind[kind] = by_kind[kind].plus(record.output_tokens, record.meta)
    findings = _findings(cell, counted, with_steps, overall)
    return AcceptanceReport(cell.id, overall, dict(by_kind), cell.accept_length_floor, tuple(findings))


def _findings(
    cell: Cell, counted: list[Answered], with_steps: list[Answered], overall: AcceptanceCounts
) -> Iterable[str]:
    if cell.speculation is None:
        if with_steps:
            yield (
                f"the cell asks for no speculation, but {len(with_steps)} of {len(counted)} answers report verify "
                "steps: compare /server_info with what was asked"
            )
        return
    if not counted:
        yield f"no answer of at least {SHORTEST_COUNTED} tokens to read acceptance from"
        return
    if len(with_steps) < len(counted):
        yield (
            f"{len(counted) - len(with_steps)} of {len(counted)} answers lack spec_verify_ct in meta_info: speculation "
            "did not run for them, or this SGLang names it otherwise (compare /server_info with what was asked)"
        )
    if overall.accept_length is None:
        return
    yield from _implausible(cell, with_steps)
    if overall.nothing_accepted:
        yield (
            "no draft token was ever accepted: the draft head is not loaded, has random weights, or does not belong to "
            "this model (see the draft's 'Load weight' lines in the log)"
        )
    elif cell.accept_length_floor is not None and overall.accept_length < cell.accept_length_floor:
        yield f"accept length {overall.accept_length:.2f} is below the cell's floor of {cell.accept_length_floor:.2f}"


def _implausible(cell: Cell, with_steps: list[Answered]) -> Iterable[str]:
    assert cell.speculation is not None
    most = cell.speculation.num_steps + 1
    for record in with_steps:
        steps = _count(record.meta, "spec_verify_ct") or 0
        # The prefill's token comes from no verify step.
        if record.output_tokens - 1 > steps * most:
            yield (
                f"{record.prompt_id}: {record.output_tokens} tokens in {steps} verify steps is more than the "
                f"{most} a step that num_steps {cell.speculation.num_steps} allows: the counts are wrong"
            )
            return


def _count(meta: Mapping[str, object], key: str) -> int | None:
    value = meta.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
