"""How many tokens a verify step yields, from counts, and whether that is plausible and enough.

Accept length = completion tokens / verify steps, over all requests; the rate is correct / proposed drafts. The figures
that the server prints are not used: the printed rate changed its meaning between versions. What the quotient includes
(SGLang 0.5.23):

* the bonus token of each step, so 1 means that no draft was accepted;
* the token of the prefill, which no verify step yields, and the step cut at max_new_tokens: with no draft accepted at
  all, an answer of 24 tokens reads 24 / 23 = 1.04. So "nothing was ever accepted" is told from the counts
  (completion tokens - 1 <= verify steps, and no correct drafts where they are told), not from the quotient being
  exactly 1.00;
* an upper end of num_steps + 1 tokens a step. More than that, or counts that contradict each other
  (:mod:`mtpgate.checks.counts`), mean that the counts are wrong.

Floor. The figure has an interval over prompts (:mod:`mtpgate.checks.interval`). It is below the floor only if all of
the interval is, and above it only if all of the interval is; if the floor lies inside, the prompts are too few to say.

Requests of one token have no verify step and are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

from mtpgate.checks.counts import StepCounts, derived_histogram
from mtpgate.checks.interval import Interval, ratio_interval
from mtpgate.load.prompts import kind_of
from mtpgate.matrix.cell import Cell

HARDLY_ANY = 1.15
"""Accept length that a head without knowledge stays below: with random weights the small model's reaches 1.05."""

WRONG_HEAD = (
    "The draft head is not loaded, has random weights, or does not belong to this model (see the draft's 'Load weight' "
    "lines in the log)"
)

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
    histogram: tuple[int, ...] = ()
    """Verify steps by the number of drafts that they accepted, of the requests that tell it."""
    prompts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """As :func:`prompt_counts` makes them."""
    nothing_accepted: bool = False
    """No verify step of any request yielded more than its bonus token."""

    def plus(self, prompt_id: str, counts: StepCounts, histogram: tuple[int, ...] | None) -> AcceptanceCounts:
        steps = counts.verify_steps or 0
        tokens_before, steps_before = self.prompts.get(prompt_id, (0, 0))
        return AcceptanceCounts(
            self.requests + 1,
            self.completion_tokens + counts.tokens,
            self.verify_steps + steps,
            self.proposed + (counts.proposed or 0),
            self.correct + (counts.correct or 0),
            tuple(a + b for a, b in zip_longest(self.histogram, histogram or (), fillvalue=0)),
            {**self.prompts, prompt_id: (tokens_before + counts.tokens, steps_before + steps)},
            counts.nothing_accepted and (self.nothing_accepted or not self.requests),
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
    def interval(self) -> Interval | None:
        """The accept length with its interval over prompts; None for a single prompt."""
        return ratio_interval(list(self.prompts.values()))

    def figures(self) -> dict[str, object]:
        """All of it as the store keeps it."""
        interval = self.interval
        return {
            "accept_length": self.accept_length,
            "interval": None if interval is None else [interval.low, interval.high],
            "accept_rate": self.accept_rate,
            "requests": self.requests,
            "prompts": len(self.prompts),
            "completion_tokens": self.completion_tokens,
            "verify_steps": self.verify_steps,
            "correct_drafts": self.correct,
            "proposed_drafts": self.proposed,
            "histogram": list(self.histogram),
        }


@dataclass(frozen=True)
class AcceptanceReport:
    """The acceptance of a cell: figures, and findings that a test should fail on."""

    cell_id: str
    overall: AcceptanceCounts
    by_kind: Mapping[str, AcceptanceCounts] = field(default_factory=dict)
    floor: float | None = None
    findings: tuple[str, ...] = ()
    undecided: str | None = None
    """Why the floor is neither met nor missed; None if it is decided, or there is none."""

    @property
    def ok(self) -> bool:
        """Nothing is wrong; whether enough is known for a pass, ``undecided`` says."""
        return not self.findings

    @property
    def accept_length(self) -> float | None:
        return self.overall.accept_length

    def _figure(self) -> str:
        length = self.accept_length
        if length is None:
            return "no accept length"
        interval = self.overall.interval
        floor = "no floor" if self.floor is None else f"floor {self.floor:.2f}"
        between = "" if interval is None else f"{interval.low:.2f} to {interval.high:.2f}; "
        return (
            f"accept length {length:.2f} tokens a verify step ({between}{floor}; "
            f"{self.overall.completion_tokens} tokens, {self.overall.verify_steps} steps)"
        )

    def message(self) -> str:
        """What is wrong or undecided first, for reports quote the first line; then the figures, overall and by kind."""
        kinds = ", ".join(f"{kind} {counts.accept_length or 0:.2f}" for kind, counts in sorted(self.by_kind.items()))
        said = [*self.findings, *([self.undecided] if self.undecided else []), self._figure()]
        if kinds:
            said.append(f"by kind: {kinds}")
        if self.overall.histogram:
            said.append(f"steps by accepted drafts: {_shares(self.overall.histogram)}")
        return f"{self.cell_id}: " + "\n  ".join(said)

    def figures(self) -> dict[str, object]:
        """All of it as the store keeps it."""
        return {
            **self.overall.figures(),
            "floor": self.floor,
            "by_kind": {kind: counts.accept_length for kind, counts in sorted(self.by_kind.items())},
            "kinds": {kind: counts.figures() for kind, counts in sorted(self.by_kind.items())},
            "findings": list(self.findings),
            "undecided": self.undecided,
        }


def judge_acceptance(cell: Cell, records: Iterable[Answered]) -> AcceptanceReport:
    """The acceptance over these requests against what the cell is and the floor that its matrix sets."""
    counted = [
        (record, StepCounts.of(record.output_tokens, record.meta))
        for record in records
        if record.output_tokens >= SHORTEST_COUNTED
    ]
    with_steps = [(record, counts) for record, counts in counted if counts.verify_steps]
    num_steps = cell.speculation.num_steps if cell.speculation is not None else 0
    overall = AcceptanceCounts()
    by_kind: defaultdict[str, AcceptanceCounts] = defaultdict(AcceptanceCounts)
    for record, counts in with_steps:
        histogram = counts.histogram or derived_histogram(counts, num_steps, getattr(record, "arrivals", ()))
        overall = overall.plus(record.prompt_id, counts, histogram)
        kind = kind_of(record.prompt_id)
        by_kind[kind] = by_kind[kind].plus(record.prompt_id, counts, histogram)
    floor = cell.accept_length_floor
    findings = list(_findings(cell, len(counted), with_steps, overall))
    undecided = None
    if not findings and floor is not None and overall.accept_length is not None:
        below, undecided = _against_floor(floor, overall)
        findings += below
    return AcceptanceReport(cell.id, overall, dict(by_kind), floor, tuple(findings), undecided)


def prompt_counts(records: Iterable[Answered]) -> dict[str, tuple[int, int]]:
    """Tokens and verify steps by prompt id, over the requests that have verify steps."""
    found: dict[str, tuple[int, int]] = {}
    for record in records:
        steps = StepCounts.of(record.output_tokens, record.meta).verify_steps
        if steps and record.output_tokens >= SHORTEST_COUNTED:
            tokens_before, steps_before = found.get(record.prompt_id, (0, 0))
            found[record.prompt_id] = (tokens_before + record.output_tokens, steps_before + steps)
    return found


def _findings(
    cell: Cell, counted: int, with_steps: Sequence[tuple[Answered, StepCounts]], overall: AcceptanceCounts
) -> Iterable[str]:
    if cell.speculation is None:
        if with_steps:
            yield (
                f"the cell asks for no speculation, but {len(with_steps)} of {counted} answers report verify "
                "steps: compare /server_info with what was asked"
            )
        return
    if not counted:
        yield f"no answer of at least {SHORTEST_COUNTED} tokens to read acceptance from"
        return
    if len(with_steps) < counted:
        yield (
            f"{counted - len(with_steps)} of {counted} answers lack spec_verify_ct in meta_info: speculation "
            "did not run for them, or this SGLang names it otherwise (compare /server_info with what was asked)"
        )
    yield from _implausible(cell.speculation.num_steps, with_steps)
    if overall.nothing_accepted:
        yield (f"no draft token was ever accepted. {WRONG_HEAD}")


def _implausible(num_steps: int, with_steps: Sequence[tuple[Answered, StepCounts]]) -> Iterable[str]:
    wrong = [
        (record, objection) for record, counts in with_steps if (objection := next(counts.objections(num_steps), ""))
    ]
    if wrong:
        first, objection = wrong[0]
        yield (
            f"the counts are wrong, and so is any accept length made of them ({len(wrong)} of {len(with_steps)} "
            f"answers): {first.prompt_id}: {objection}"
        )


def _against_floor(floor: float, overall: AcceptanceCounts) -> tuple[list[str], str | None]:
    interval, length = overall.interval, overall.accept_length
    assert length is not None
    if interval is None:
        return [], f"a single prompt has no interval: not enough to compare {length:.2f} with the floor of {floor:.2f}"
    if interval.high < floor:
        text = f"accept length {length:.2f} is below the cell's floor of {floor:.2f}, and so is all of its interval"
        text += f" ({interval.low:.2f} to {interval.high:.2f}, {interval.clusters} prompts)"
        if interval.high < HARDLY_ANY:
            text += f": hardly any draft is accepted. {WRONG_HEAD}"
        return [text], None
    if interval.low < floor:
        between = f"{interval.low:.2f} to {interval.high:.2f} over {interval.clusters} prompts"
        return [], f"the floor of {floor:.2f} lies inside the interval ({between}): too few prompts to say"
    return [], None


def _shares(histogram: Sequence[int]) -> str:
    total = sum(histogram) or 1
    return ", ".join(f"{drafts}: {times / total:.0%}" for drafts, times in enumerate(histogram))
