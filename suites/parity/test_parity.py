"""Does the cell still say the same? Greedy answers, token by token, against the reference cell's."""

from collections.abc import Iterator

import pytest

from fixtures.launches import Blocked
from fixtures.outcomes import remark
from fixtures.session import PLAN
from mtpgate.checks.answers import Answers, Composition, collect_answers
from mtpgate.checks.control import Control, calibrate, table_of
from mtpgate.checks.forcing import TOP, Force, forcing
from mtpgate.checks.margins import agreeing, judge
from mtpgate.checks.parity import ParityReport, compare_answers, parity_messages
from mtpgate.checks.sanity import check_answers, not_in_reference
from mtpgate.load.prompts import Prompt
from mtpgate.matrix.cell import Cell
from mtpgate.report.store import Store
from mtpgate.server.client import ServerClient

pytestmark = [pytest.mark.mtp, pytest.mark.parity]

NEW_TOKENS = 32
COMPOSITIONS: tuple[Composition, ...] = ("single", "batch")


def test_answers_as_the_reference(
    cell: Cell,
    client: ServerClient,
    answers: dict[tuple[str, str], Answers],
    controls: dict[str, Control],
    prompts: tuple[Prompt, ...],
    store: Store,
    request: pytest.FixtureRequest,
) -> None:
    """Answers as the reference cell does, token by token, each prompt alone and all in one batch."""
    reference_id = request.config.stash[PLAN].reference.id
    for composition in COMPOSITIONS:
        given = collect_answers(client.ask, prompts, composition=composition, max_new_tokens=NEW_TOKENS)
        answers[cell.id, composition] = given
        store.write_json(cell.id, f"answers-{composition}", given)
        if (reference_id, composition) not in answers:
            raise Blocked(f"not compared: the reference cell {reference_id} gave no answers; see its checks")
    force = forcing(client.ask, client.tokenize)
    if cell.is_reference:
        reports, controls[cell.id] = _control(client, prompts, answers, cell.id, force)
    else:
        reports = [
            compare_answers(answers[reference_id, composition], answers[cell.id, composition])
            for composition in COMPOSITIONS
        ]
    control = controls.get(reference_id)
    ties, alone = [], []
    if control is not None and not cell.is_reference:
        texts = {prompt.id: prompt.text for prompt in prompts}
        for place, report in enumerate(reports):
            own = answers[cell.id, report.composition]
            reports[place], found = judge(report, own, control, force=force, texts=texts)
            ties += [f"{report.composition}: {tie}" for tie in found]
            others = _others(answers, report.composition, {cell.id, reference_id})
            alone += agreeing(reports[place], own, others)
    findings = _findings(cell, answers, reference_id)
    store.write_json(
        cell.id,
        "parity",
        {
            "reference": reference_id,
            "prompts": reports[0].compared,
            "tokens": sum(report.tokens for report in reports),
            "differences": sum(len(report.differences) for report in reports),
            "near_ties": len(ties),
            "tolerance": control.tolerance if control else None,
            "reports": reports,
        },
    )
    what = f"{cell.id} against itself, asked again" if cell.is_reference else f"{cell.id} against {reference_id}"
    # What is wrong comes first: the report's first line quotes the begin of this.
    wrong = [*parity_messages(report for report in reports if not report.ok), *findings[:3]]
    if alone:
        wrong.append(f"{', '.join(dict.fromkeys(alone))} answered just so too: the reference stands alone")
    fine = [*parity_messages(report for report in reports if report.ok), *ties[:3]]
    fine += [control.message()] if control is not None and cell.is_reference else []
    message = f"{what}: " + "\n".join([*wrong, *fine])
    assert all(report.ok for report in reports), message
    assert not findings, message
    assert not cell.is_reference or (control is not None and control.usable), message
    remark(request.node, message)


def _control(
    client: ServerClient,
    prompts: tuple[Prompt, ...],
    answers: dict[tuple[str, str], Answers],
    reference: str,
    force: Force,
) -> tuple[list[ParityReport], Control]:
    """The reference asked again, with log-probabilities, and by teacher forcing: one that does not repeat itself proves
    nothing of the others."""
    reports, tables = [], {}
    for composition in COMPOSITIONS:
        ranked = collect_answers(
            client.ask, prompts, composition=composition, max_new_tokens=NEW_TOKENS, top_logprobs=TOP
        )
        reports.append(compare_answers(answers[reference, composition], ranked))
        tables[composition] = table_of(ranked)
    single = answers[reference, "single"].answers
    tables["forced"] = {prompt.id: force(prompt.id, prompt.text, single[prompt.id].output_ids) for prompt in prompts}
    return reports, calibrate(tables)


def _others(
    answers: dict[tuple[str, str], Answers], composition: str, known: set[str]
) -> Iterator[tuple[str, Answers]]:
    return ((id_, given) for (id_, asked), given in answers.items() if asked == composition and id_ not in known)


def _findings(cell: Cell, answers: dict[tuple[str, str], Answers], reference: str) -> list[str]:
    """Answers that no model gives, and the reference did not give either."""
    findings = []
    for composition in COMPOSITIONS:
        there = () if cell.is_reference else check_answers(answers[reference, composition])
        new = not_in_reference(check_answers(answers[cell.id, composition]), there)
        findings += [f"{composition}: {finding}" for finding in new]
    return findings
