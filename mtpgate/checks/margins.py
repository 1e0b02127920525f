"""From a difference to a judgement: rounding, or a fault? By the gap between the reference's token and the cell's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mtpgate.checks.answers import Answers
from mtpgate.checks.control import Control, is_unlikely, largest_gap
from mtpgate.checks.forcing import Force
from mtpgate.checks.logprobs import Position
from mtpgate.checks.parity import Difference, ParityReport
from mtpgate.server.client import ServerError


@dataclass(frozen=True)
class NearTie:
    """An answer that left the reference's where two tokens were as good as equal, and stayed the target's own."""

    prompt_id: str
    position: int
    gap: float
    """At the first difference, by the reference."""
    forced_gap: float
    """The largest of the rest of the answer, by the target's prefill."""

    def __str__(self) -> str:
        return f"{self.prompt_id} at {self.position} (gap {self.gap:.2g})"


def judge(
    report: ParityReport, answers: Answers, control: Control, *, force: Force, texts: Mapping[str, str]
) -> tuple[ParityReport, tuple[NearTie, ...]]:
    """Take the near-ties out of ``report.differences``; the others get the gap and both probabilities.

    The reference's own table gives the gap at the first difference. What follows has another context, so it is weighed
    by teacher forcing on the cell's server (its target model's prefill); ``texts`` are the prompts by id. A difference
    that is not of tokens (length, text, finish reason) is a difference still.
    """
    left: list[Difference] = []
    ties: list[NearTie] = []
    for difference in report.differences:
        table = control.tables.get(report.composition, {}).get(difference.prompt_id, ())
        if difference.what != "token" or difference.position >= len(table):
            left.append(difference)
            continue
        found = answers.answers[difference.prompt_id]
        position = table[difference.position]
        if is_unlikely(position, control.tolerance):
            left.append(replace(difference, note=of_the_reference(position)))
            continue
        gap = position.gap(found.output_ids[difference.position])
        weighed = _forced(force, difference, texts, found.output_ids)
        if isinstance(weighed, str):
            left.append(replace(difference, note=f"{odds(position, found.output_ids[difference.position])}; {weighed}"))
            continue
        worst, where = largest_gap(weighed[difference.position :])
        if gap.exact and gap.value <= control.tolerance and worst <= control.tolerance:
            ties.append(NearTie(difference.prompt_id, difference.position, gap.value, worst))
            continue
        note = f"{odds(position, found.output_ids[difference.position])}; near-ties end at {control.tolerance:.2g}"
        if worst > control.tolerance and where > 0:
            note += f"; by its own target's prefill the answer is wrong by {worst:.3g} at {difference.position + where}"
        left.append(replace(difference, note=note))
    return replace(report, differences=tuple(left), near_ties=len(ties)), tuple(ties)


def without_ties(report: ParityReport, again: Answers, control: Control) -> ParityReport:
    """As :func:`judge`, of the reference against itself, by its own log-probabilities alone."""
    left: list[Difference] = []
    for difference in report.differences:
        table = control.tables.get(report.composition, {}).get(difference.prompt_id, ())
        if difference.what != "token" or difference.position >= len(table):
            left.append(difference)
            continue
        position, token = (
            table[difference.position],
            again.answers[difference.prompt_id].output_ids[difference.position],
        )
        gap = position.gap(token)
        if not gap.exact or gap.value > control.tolerance:
            left.append(replace(difference, note=odds(position, token)))
    return replace(report, differences=tuple(left), near_ties=len(report.differences) - len(left))


def _forced(
    force: Force, difference: Difference, texts: Mapping[str, str], answer: tuple[int, ...]
) -> tuple[Position, ...] | str:
    try:
        return force(difference.prompt_id, texts[difference.prompt_id], answer)
    except ServerError as error:
        return f"could not be weighed by teacher forcing: {error}"


def of_the_reference(position: Position) -> str:
    """What is said where the reference's own token cannot be right."""
    return f"the reference's own token was not its best there (gap {position.gap(position.chosen[1])}): it is broken"


def odds(position: Position, token: int) -> str:
    """Both tokens' probabilities by the reference."""
    logprob = position.logprob(token)
    best = f"the reference gave its token {_percent(position.top[0][0])}"
    if logprob is None:
        return f"{best} and this one less than {_percent(position.top[-1][0])} (gap {position.gap(token)})"
    return f"{best} and this one {_percent(logprob)} (gap {position.gap(token)})"


def _percent(logprob: float) -> str:
    return f"{100 * math.exp(logprob):.3g} %"


def agreeing(report: ParityReport, answers: Answers, others: Iterable[tuple[str, Answers]]) -> tuple[str, ...]:
    """Cells that gave the very answers that differ from the reference's: then the reference stands alone."""
    names = [difference.prompt_id for difference in report.differences]
    if not names:
        return ()
    return tuple(
        cell_id
        for cell_id, given in others
        if all(
            name in given.answers
            and name in answers.answers
            and given.answers[name].output_ids == answers.answers[name].output_ids
            for name in names
        )
    )
