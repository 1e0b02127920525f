"""Are drafts accepted? The accept length, from counts, above the cell's floor; singly, and under each load."""

import pytest

from fixtures.baselines import Gate
from fixtures.outcomes import not_judged, remark
from fixtures.session import PLAN
from mtpgate.checks.acceptance import judge_acceptance
from mtpgate.checks.answers import Answers, collect_answers
from mtpgate.checks.sanity import check_answers, not_in_reference
from mtpgate.load.prompts import Prompt
from mtpgate.matrix.cell import Cell
from mtpgate.report.store import Store
from mtpgate.server.client import ServerClient

pytestmark = [pytest.mark.mtp, pytest.mark.acceptance]

NEW_TOKENS = 64
SHOWN_FINDINGS = 3


@pytest.fixture(scope="session")
def acceptance_figures() -> dict[str, dict[str, object]]:
    """What the store has in acceptance.json, by cell id: the two tests fill one document."""
    return {}


def test_accept_length(
    cell: Cell,
    client: ServerClient,
    answers: dict[tuple[str, str], Answers],
    prompts: tuple[Prompt, ...],
    store: Store,
    acceptance_figures: dict[str, dict[str, object]],
    request: pytest.FixtureRequest,
) -> None:
    """Accepts drafts: the accept length is above the cell's floor."""
    # What parity asked in this launch already says how much of it was accepted.
    given = answers.get((cell.id, "batch")) or collect_answers(
        client.ask, prompts, composition="batch", max_new_tokens=NEW_TOKENS
    )
    # A loop is accepted better than any text: it must not count, whoever's fault it is.
    insane = check_answers(given)
    unfit = {finding.prompt_id for finding in insane}
    report = judge_acceptance(cell, [answer for answer in given.answers.values() if answer.prompt_id not in unfit])
    figures = {**report.figures(), "left_out": sorted(unfit), "insane": [str(finding) for finding in insane]}
    acceptance_figures[cell.id] = figures
    store.write_json(cell.id, "acceptance", figures)
    reference = answers.get((request.config.stash[PLAN].reference.id, "batch"))
    new = not_in_reference(insane, check_answers(reference) if reference is not None else ())
    assert not new, (
        f"{cell.id}: {len(unfit)} of {len(given.answers)} answers are not sane, so their acceptance does not count:\n"
        + "\n".join(str(finding) for finding in new[:SHOWN_FINDINGS])
    )
    if unfit and len(unfit) == len(given.answers):
        text = f"{cell.id}: no answer is fit to be counted, and the reference's are not either: {insane[0]}"
        not_judged(request.node, "insufficient", text)
    assert report.ok, report.message()
    if report.undecided is not None:
        not_judged(request.node, "insufficient", report.message())
    left_out = f"\n  left out: {len(unfit)} answers that are not sane in the reference either" if unfit else ""
    remark(request.node, report.message() + left_out)


def test_accept_length_under_load(
    cell: Cell,
    gate: Gate,
    store: Store,
    acceptance_figures: dict[str, dict[str, object]],
    request: pytest.FixtureRequest,
) -> None:
    """Accepts as many drafts at each concurrency, and as in the recorded baselines."""
    report = gate.acceptance(request.config.stash[PLAN].matrix.workloads)
    figures = acceptance_figures.get(cell.id, {})
    store.write_json(cell.id, "acceptance", {**figures, "under_load": report.figures()})
    assert report.ok, report.message()
    if report.undecided:
        not_judged(request.node, "insufficient", report.message())
    remark(request.node, report.message())
