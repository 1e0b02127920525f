"""Does a cell answer as the reference cell does? Greedy answers compared token by token.

Speculative decoding is lossless at temperature 0: a draft token is kept only where the target model would have chosen
it. So each answer must have the same token ids, the same text and the same finish reason as the reference's, at equal
batch composition. In float32 that holds exactly but for one token in a million (the largest difference seen in a
log-probability was 5.5e-6); in a narrower type near-ties turn more often: :mod:`mtpgate.checks.margins` tells them from
a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mtpgate.checks.answers import Answer, Answers
from mtpgate.errors import UsageError

SHOWN_DIFFERENCES = 3
SHOWN_CHARACTERS = 240
"""Bounds of the diagnostics: enough to see what happened, short enough to be read."""

DETAILED = 2
"""Compositions whose differences are shown; a fault of every batch shows alike in each."""

LEAD_CHARACTERS = 40
"""Equal text shown before the first difference."""

What = Literal["token", "length", "text", "finish_reason", "missing"]
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Difference:
    """The first place where an answer leaves the reference's."""

    prompt_id: str
    what: What
    position: int
    """The token's 0-based position in the answer; the character's for ``text``."""
    expected: str
    """The reference's token, length, or text from shortly before the difference on."""
    found: str
    expected_text: str = ""
    """The reference's text around the difference."""
    found_text: str = ""
    note: str = ""
    """What the log-probabilities say of it."""

    def __str__(self) -> str:
        head = f"{self.prompt_id}: {self.what} at {self.position}: reference {self.expected}, here {self.found}"
        head += f"\n      {self.note}" if self.note else ""
        if not self.expected_text and not self.found_text:
            return head
        return f"{head}\n      reference: {self.expected_text!r}\n      here:      {self.found_text!r}"


@dataclass(frozen=True)
class ParityReport:
    """What the comparison at one composition came to."""

    composition: str
    compared: int
    """Prompts compared."""
    tokens: int
    """Reference tokens compared."""
    differences: tuple[Difference, ...]
    """One for each prompt that differs, in the order of the prompts."""
    near_ties: int = 0
    """Prompts whose answers left the reference's at tokens that are as good as equal; not among the differences."""

    @property
    def ok(self) -> bool:
        return not self.differences

    @property
    def same(self) -> int:
        return self.compared - len(self.differences) - self.near_ties

    def message(self, compositions: str = "") -> str:
        """A sentence, at most three differences, and what to look at next.

        ``compositions`` names those that came to the same, in place of this one's.
        """
        head = (
            f"{compositions or self.composition}: {self.same} of {self.compared} answers equal the reference's "
            f"({self.tokens} tokens)"
        )
        head += f", {self.near_ties} left it at a near-tie" if self.near_ties else ""
        if self.ok:
            return head
        shown = [f"  - {difference}" for difference in self.differences[:SHOWN_DIFFERENCES]]
        left_out = len(self.differences) - len(shown)
        if left_out:
            shown.append(f"  - and {left_out} more")
        return "\n".join([head, *shown, f"  look next: {_advice(self)}"])


def parity_messages(reports: Iterable[ParityReport]) -> list[str]:
    """What the reports say, those that differ first; reports that say the same are one (``single and batch: ...``).

    After the first DETAILED that differ, the others have their first line only.
    """
    groups: list[list[ParityReport]] = []
    for report in sorted(reports, key=lambda report: report.ok):
        alike = next((group for group in groups if _outcome(group[0]) == _outcome(report)), None)
        if alike is None:
            groups.append([report])
        else:
            alike.append(report)
    messages = [group[0].message(_listed([report.composition for report in group])) for group in groups]
    return [text if place < DETAILED else text.partition("\n")[0] for place, text in enumerate(messages)]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def _outcome(report: ParityReport) -> tuple[int, int, int, tuple[Difference, ...]]:
    return report.compared, report.tokens, report.near_ties, report.differences


def compare_answers(reference: Answers, answers: Answers, *, decode: Decode | None = None) -> ParityReport:
    """Compare a cell's answers with the reference cell's.

    ``decode`` turns token ids into text; with it the tokens at a difference are shown as text too.

    Raises:
        UsageError: the two were asked differently (composition, number of new tokens), so they cannot be compared.
    """
    if (reference.composition, reference.max_new_tokens) != (answers.composition, answers.max_new_tokens):
        raise UsageError(
            f"answers of composition {answers.composition!r} with {answers.max_new_tokens} new tokens cannot be "
            f"compared with {reference.composition!r} and {reference.max_new_tokens}"
        )
    pairs: Mapping[str, Answer] = reference.answers
    differences = (
        _first_difference(expected, answers.answers.get(prompt_id), decode) for prompt_id, expected in pairs.items()
    )
    return ParityReport(
        composition=reference.composition,
        compared=len(pairs),
        tokens=sum(len(answer.output_ids) for answer in pairs.values()),
        differences=tuple(difference for difference in differences if difference is not None),
    )


def _first_difference(expected: Answer, found: Answer | None, decode: Decode | None) -> Difference | None:
    name = expected.prompt_id
    if found is None:
        return Difference(name, "missing", 0, "an answer", "none")
    texts = _around(expected.text, found.text)
    for position, (left, right) in enumerate(zip(expected.output_ids, found.output_ids, strict=False)):
        if left != right:
            return Difference(name, "token", position, _show(left, decode), _show(right, decode), *texts)
    lengths = len(expected.output_ids), len(found.output_ids)
    if lengths[0] != lengths[1]:
        return Difference(name, "length", min(lengths), f"{lengths[0]} tokens", f"{lengths[1]} tokens", *texts)
    if expected.text != found.text:
        position = _first_unequal(expected.text, found.text)
        return Difference(name, "text", position, "other text", "other text of the same tokens", *texts)
    if expected.finish_reason != found.finish_reason:
        return Difference(name, "finish_reason", lengths[0], repr(expected.finish_reason), repr(found.finish_reason))
    return None


def _show(token: int, decode: Decode | None) -> str:
    return f"token {token}" if decode is None else f"token {token} {decode([token])!r}"


def _around(expected: str, found: str) -> tuple[str, str]:
    """Both texts from shortly before their first difference on, together at most SHOWN_CHARACTERS long."""
    start = max(0, _first_unequal(expected, found) - LEAD_CHARACTERS)
    width = SHOWN_CHARACTERS // 2
    return expected[start : start + width], found[start : start + width]


def _first_unequal(left: str, right: str) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((position for position, (one, other) in pairs if one != other), min(len(left), len(right)))


def _advice(report: ParityReport) -> str:
    positions = [difference.position for difference in report.differences if difference.what == "token"]
    kinds = {difference.what for difference in report.differences}
    cases: tuple[tuple[bool, str], ...] = (
        (kinds == {"missing"}, "requests without an answer: the server's log"),
        (
            kinds <= {"finish_reason", "length"},
            "the tokens agree as far as they go: max_new_tokens and stop conditions inside an accepted draft window",
        ),
        (not positions, "the tokens agree but not the text: the detokenizer"),
        (
            bool(positions) and max(positions) == 0,
            "every difference is in the first token, before any draft: prefill, weights, the prompt's tokens",
        ),
        (
            report.same == 0,
            "every prompt differs: the verify step accepts what the target would not choose, or the weights differ",
        ),
        (
            report.composition != "single",
            "compare with the answers asked singly: if those agree, requests of one batch get into each other's way",
        ),
    )
    otherwise = "ask the reference twice (a near-tie turns there too), then look at the KV after a rejected draft"
    return next((advice for applies, advice in cases if applies), otherwise)
