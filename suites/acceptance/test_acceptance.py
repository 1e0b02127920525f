"""Are drafts accepted? The accept length, from counts, above the cell's floor."""

import pytest

from fixtures.outcomes import remark
from mtpgate.checks.acceptance import judge_acceptance
from mtpgate.checks.answers import Answers, collect_answers
from mtpgate.load.prompts import Prompt
from mtpgate.matrix.cell import Cell
from mtpgate.report.store import Store
from mtpgate.server.client import ServerClient

pytestmark = [pytest.mark.mtp, pytest.mark.acceptance]

NEW_TOKENS = 64


def test_accept_length(
    cell: Cell,
    client: ServerClient,
    answers: dict[tuple[str, str], Answers],
    prompts: tuple[Prompt, ...],
    store: Store,
    request: pytest.FixtureRequest,
) -> None:
    """Accepts drafts: the accept length is above the cell's floor."""
    # What parity asked in this launch already says how much of it was accepted.
    given = answers.get((cell.id, "batch")) or collect_answers(
        client.ask, prompts, composition="batch", max_new_tokens=NEW_TOKENS
    )
    report = judge_acceptance(cell, given.answers.values())
    store.write_json(
        cell.id,
        "acceptance",
        {
            "accept_length": report.accept_length,
            "accept_rate": report.overall.accept_rate,
            "floor": report.floor,
            "completion_tokens": report.overall.completion_tokens,
            "verify_steps": report.overall.verify_steps,
            "by_kind": {kind: counts.accept_length for kind, counts in report.by_kind.items()},
            "findings": report.findings,
        },
    )
    assert report.ok, report.message()
    remark(request.node, report.message())
