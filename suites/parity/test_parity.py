"""Does the cell still say the same? Greedy answers, token by token, against the reference cell's."""

import pytest

from fixtures.launches import Blocked
from fixtures.outcomes import remark
from fixtures.session import PLAN
from mtpgate.checks.answers import Answers, Composition, collect_answers
from mtpgate.checks.parity import compare_answers, parity_messages
from mtpgate.checks.sanity import check_output, not_in_reference
from mtpgate.load.prompts import parity_prompts
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
    store: Store,
    request: pytest.FixtureRequest,
) -> None:
    """Answers as the reference cell does, token by token, each prompt alone and all in one batch."""
    reference_id = request.config.stash[PLAN].reference.id
    reports, findings = [], []
    for composition in COMPOSITIONS:
        given = collect_answers(client.ask, parity_prompts(), composition=composition, max_new_tokens=NEW_TOKENS)
        store.write_json(cell.id, f"answers-{composition}", given)
        answers[cell.id, composition] = given
        if cell.is_reference:
            # The control: a reference that does not repeat itself proves nothing of the others.
            given = collect_answers(client.ask, parity_prompts(), composition=composition, max_new_tokens=NEW_TOKENS)
        reference = answers.get((reference_id, composition))
        if reference is None:
            raise Blocked(f"not compared: the reference cell {reference_id} gave no answers; see its checks")
        reports.append(compare_answers(reference, given))
        new = not_in_reference(_insane(given), () if cell.is_reference else _insane(reference))
        findings += [f"{composition}: {finding}" for finding in new]
    store.write_json(
        cell.id,
        "parity",
        {
            "reference": reference_id,
            "prompts": reports[0].compared,
            "tokens": sum(report.tokens for report in reports),
            "differences": sum(len(report.differences) for report in reports),
            "reports": reports,
        },
    )
    what = f"{cell.id} against itself, asked again" if cell.is_reference else f"{cell.id} against {reference_id}"
    # What is wrong comes first: the report's first line quotes the begin of this.
    wrong = [*parity_messages(report for report in reports if not report.ok), *findings[:3]]
    message = f"{what}: " + "\n".join([*wrong, *parity_messages(report for report in reports if report.ok)])
    assert all(report.ok for report in reports), message
    assert not findings, message
    remark(request.node, message)


def _insane(given: Answers):
    return [
        finding
        for answer in given.answers.values()
        for finding in check_output(
            answer.prompt_id,
            answer.text,
            answer.output_ids,
            counted=answer.output_tokens,
            finish_reason=answer.finish_reason,
        )
    ]
