"""The answers that left the reference's, weighed by the reference itself, which was launched once more for it.

The relaunched reference repeats its answers, which shows what another launch alone changes (:func:`relaunched`), and
then each answer is given back to it, so that it tells at every position how far the cell's token was from its own
best (:func:`weigh`). One token beyond the tolerance, anywhere in the answer, is a divergence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mtpgate.checks.answers import Answers
from mtpgate.checks.control import Control, calibrate, is_unlikely, table_of
from mtpgate.checks.forcing import Force
from mtpgate.checks.logprobs import Position
from mtpgate.checks.margins import NearTie, odds, of_the_reference, without_ties
from mtpgate.checks.parity import Decode, Difference, ParityReport, compare_answers

TEXT_TOKENS = 24
"""Tokens of an answer that are shown before a divergence, and from it on."""
NOT_OF_TOKENS = "not a difference of tokens, so it cannot be weighed"

Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Relaunched:
    """The reference after it was launched once more."""

    control: Control
    """Of both launches."""
    answers: Mapping[str, Answers]
    """What it answered this time, by composition."""
    reports: tuple[ParityReport, ...]
    """This time against the first, near-ties taken out: differences are a reference that does not repeat itself."""

    @property
    def usable(self) -> bool:
        return self.control.usable and all(report.ok for report in self.reports)

    @property
    def turned(self) -> int:
        """Answers that left the first launch's at a near-tie."""
        return sum(report.near_ties for report in self.reports)


def relaunched(first: Mapping[str, Answers], control: Control, again: Mapping[str, Answers]) -> Relaunched:
    """The two launches of the reference compared; ``again`` was asked with log-probabilities, both by composition."""
    tables = {f"{name}, launched again": table_of(given) for name, given in again.items()}
    both = calibrate({**control.tables, **tables})
    reports = [compare_answers(first[name], given) for name, given in again.items()]
    return Relaunched(both, again, tuple(without_ties(report, again[report.composition], both) for report in reports))


class Scales:
    """Weighs answers on one server; an answer that was given in several compositions is weighed once."""

    def __init__(self, force: Force, texts: Mapping[str, str], decode: Decode) -> None:
        self._force = force
        self._texts = texts
        self._decode = decode
        self._known: dict[Key, tuple[Position, ...]] = {}

    def positions(self, prompt_id: str, answer: tuple[int, ...]) -> tuple[Position, ...]:
        key = (prompt_id, answer)
        if key not in self._known:
            self._known[key] = self._force(prompt_id, self._texts[prompt_id], answer)
        return self._known[key]

    def divergence(
        self, difference: Difference, answer: tuple[int, ...], at: int, position: Position, tolerance: float
    ) -> Difference:
        """``difference`` moved to the first token that the reference would not have chosen, and all that is known."""
        before = self._decode(answer[max(at - TEXT_TOKENS, 0) : at])
        here = self._decode(answer[at : at + TEXT_TOKENS])
        best, token = position.best, answer[at]
        note = f"by the reference, launched again: {odds(position, token)}; near-ties end at {tolerance:.2g}"
        if at > difference.position:
            note += f"; it had left the reference at {difference.position} already, at a near-tie"
        return replace(
            difference,
            position=at,
            expected=f"token {best} {self._decode([best])!r}",
            found=f"token {token} {self._decode([token])!r}",
            expected_text=before + self._decode([best]),
            found_text=before + here,
            note=note,
        )


def weigh(
    report: ParityReport, answers: Answers, control: Control, scales: Scales
) -> tuple[ParityReport, tuple[NearTie, ...]]:
    """What is left of the differences of ``report`` once each answer was weighed over its whole length.

    Raises ServerError if the reference does not weigh an answer.
    """
    left: list[Difference] = []
    ties: list[NearTie] = []
    for difference in report.differences:
        if difference.what != "token":
            left.append(replace(difference, note=NOT_OF_TOKENS))
            continue
        answer = answers.answers[difference.prompt_id].output_ids
        weighed = scales.positions(difference.prompt_id, answer)
        gaps = [position.gap(position.chosen[1]).value for position in weighed]
        far = next((place for place, gap in enumerate(gaps) if gap > control.tolerance), None)
        own = control.tables.get(report.composition, {}).get(difference.prompt_id, ())[difference.position :]
        if far is not None:
            left.append(scales.divergence(difference, answer, far, weighed[far], control.tolerance))
        elif own and is_unlikely(own[0], control.tolerance):
            left.append(replace(difference, note=of_the_reference(own[0])))
        else:
            worst = max(gaps)
            ties.append(NearTie(difference.prompt_id, difference.position, gaps[difference.position], worst))
    return replace(report, differences=tuple(left), near_ties=len(ties)), tuple(ties)


def answers_alike(
    reports: Iterable[ParityReport], answers: Mapping[str, Answers], others: Mapping[str, Answers]
) -> bool:
    """Whether ``others`` hold every answer by which ``answers`` left the reference; both by composition."""
    pairs = [
        [given[report.composition].answers[difference.prompt_id].output_ids for given in (answers, others)]
        for report in reports
        for difference in report.differences
        if difference.what != "missing"
    ]
    return bool(pairs) and all(one == other for one, other in pairs)
