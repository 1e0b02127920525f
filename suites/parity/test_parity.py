"""Does the cell still say the same? Greedy answers, token by token, against the reference cell's."""

from collections.abc import Iterable, Sequence

import pytest

from fixtures.launches import Blocked, Launched
from fixtures.outcomes import remark
from fixtures.parity import Decoder, ParitySession
from mtpgate.checks.answers import Answers
from mtpgate.checks.compositions import BATCH, SINGLE
from mtpgate.checks.control import calibrate, table_of
from mtpgate.checks.forcing import TOP, forcing
from mtpgate.checks.margins import agreeing, judge, without_ties
from mtpgate.checks.parity import ParityReport, compare_answers, parity_messages
from mtpgate.checks.reach import Reach, reached
from mtpgate.checks.sanity import check_answers, not_in_reference
from mtpgate.checks.weighing import Relaunched, answers_alike, weigh
from mtpgate.matrix.cell import Cell
from mtpgate.report.store import Store
from mtpgate.server.client import ServerClient
from mtpgate.server.launch import RunningServer

pytestmark = [pytest.mark.mtp, pytest.mark.parity]

SHOWN = 3


def test_answers_as_the_reference(
    cell: Cell,
    client: ServerClient,
    server: RunningServer,
    parity: ParitySession,
    store: Store,
    request: pytest.FixtureRequest,
) -> None:
    """Answers as the reference cell does, token by token, each prompt alone and in batches."""
    if cell.is_reference:
        parity.lengthen(server.server_info, client)
    _ask(cell, client, parity, store)
    mine = parity.of(cell)
    reach = reached(cell, server.server_info, parity.compositions(cell), mine)
    if cell.is_reference:
        reports = _control(client, parity)
        ties, alone = [], []
    else:
        theirs, decode = parity.of(parity.reference), Decoder(client)
        differing = tuple(compare_answers(theirs[name], given, decode=decode) for name, given in mine.items())
        parity.compared[cell.id] = differing
        reports, ties, alone = _judged(cell, differing, client, parity)
    control = parity.control
    assert control is not None
    parity.figures[cell.id] = _figures(parity, reports, reach)
    store.write_json(cell.id, "parity", parity.figures[cell.id])
    what = f"{cell.id} against " + ("itself, asked again" if cell.is_reference else parity.reference.id)
    # What is wrong comes first: the report's first line quotes the begin of this.
    wrong = [control.message()] if cell.is_reference and not control.usable else []
    wrong += parity_messages(report for report in reports if not report.ok)
    wrong += _findings(parity, cell)[:SHOWN]
    wrong += [_alone(alone)] if alone else []
    fine = [*parity_messages(report for report in reports if report.ok), *ties[:SHOWN]]
    fine += [control.message()] if cell.is_reference and control.usable else []
    message = f"{what}: " + "\n".join([*wrong, *fine, *reach.notes])
    assert not wrong, message
    remark(request.node, message)


# The launch is part of the test, and has deadlines of its own, phase by phase.
@pytest.mark.timeout(7200)
@pytest.mark.deferred
def test_answers_weighed_by_the_reference(
    cell: Cell,
    parity: ParitySession,
    reference_again: Launched,
    store: Store,
    request: pytest.FixtureRequest,
) -> None:
    """Where it left the reference, the reference, launched once more, would have chosen as it did."""
    compared = parity.compared.get(cell.id)
    if compared is None or parity.control is None:
        raise Blocked(f"not weighed: the answers of {cell.id} were not compared; see its parity check")
    if all(report.ok for report in compared):
        tokens = sum(report.tokens for report in compared)
        remark(request.node, f"nothing to weigh: all {tokens} tokens of {cell.id} equal the reference's")
        return
    again, scales = parity.weigh_on(reference_again)
    mine = parity.of(cell)
    weighed = [weigh(report, mine[report.composition], again.control, scales) for report in compared]
    reports = [report for report, _ in weighed]
    ties = [f"{report.composition}: {tie}" for report, found in weighed for tie in found]
    asked = sum(len(report.differences) for report in compared)
    figures = {
        "weighed": asked,
        "weighed_near_ties": len(ties),
        "weighed_differences": asked - len(ties),
        "weighed_tolerance": again.control.tolerance,
        "weighed_reports": reports,
        "reference_again": again.reports,
    }
    store.write_json(cell.id, "parity", {**parity.figures.get(cell.id, {}), **figures})
    wrong = [*parity_messages(report for report in reports if not report.ok), *_of_reference(again)]
    wrong += _company(cell, reports, again, parity)
    fine = [
        f"{len(ties)} of {asked} answers that left it are near-ties over their whole length "
        f"(tolerance {again.control.tolerance:.2g})",
        *ties[:SHOWN],
        *([again.control.message()] if again.usable else []),
        *([f"the reference itself left {again.turned} answers at a near-tie"] if again.turned else []),
    ]
    message = f"{cell.id} weighed by {parity.reference.id}, launched again: " + "\n".join([*wrong, *fine])
    assert not wrong, message
    remark(request.node, message)


def _ask(cell: Cell, client: ServerClient, parity: ParitySession, store: Store) -> None:
    """Ask and keep the answers to all compositions. Blocked where there is nothing to compare them with."""
    for composition in parity.compositions(cell):
        # The gaps are read from the log-probabilities of the very answers that the cells are compared with.
        given = parity.ask(client, composition, top_logprobs=TOP if cell.is_reference else 0)
        parity.answers[cell.id, composition.name] = given
        store.write_json(cell.id, f"answers-{composition.name}", given.bare())
        if (parity.reference.id, composition.name) not in parity.answers:
            raise Blocked(f"not compared: the reference cell {parity.reference.id} gave no answers; see its checks")


def _figures(parity: ParitySession, reports: Sequence[ParityReport], reach: Reach) -> dict[str, object]:
    """What the store has of a comparison."""
    control = parity.control
    assert control is not None
    return {
        "reference": parity.reference.id,
        "prompts": reports[0].compared,
        "compositions": ", ".join(reach.in_flight),
        "tokens": sum(report.tokens for report in reports),
        "differences": sum(len(report.differences) for report in reports),
        "near_ties": sum(report.near_ties for report in reports),
        "tolerance": control.tolerance,
        "chunked_prompts": reach.chunked,
        "reach": reach,
        "control": {"noise": control.noise, "positions": control.positions, "turned": control.turned},
        "reports": reports,
    }


def _control(client: ServerClient, parity: ParitySession) -> list[ParityReport]:
    """The reference asked again, and by teacher forcing. One that does not repeat itself proves nothing of others."""
    first, force = parity.of(parity.reference), forcing(client.ask, client.tokenize)
    single = first[SINGLE].answers
    forced = {prompt.id: force(prompt.id, prompt.text, single[prompt.id].output_ids) for prompt in parity.prompts}
    control = calibrate({**{name: table_of(given) for name, given in first.items()}, "forced": forced})
    parity.control = control
    # The batch alone: asked singly, an answer has no company that could disturb it, and it would take as long again.
    batch = next(one for one in parity.compositions(parity.reference) if one.name == BATCH)
    again = parity.ask(client, batch)
    return [without_ties(compare_answers(first[BATCH], again), again, control)]


def _judged(
    cell: Cell, differing: Iterable[ParityReport], client: ServerClient, parity: ParitySession
) -> tuple[list[ParityReport], list[str], list[str]]:
    """The reports without near-ties, the near-ties, and which cells agree with this one against the reference."""
    control = parity.control
    if control is None:
        raise Blocked(f"not judged: {parity.reference.id} was not asked again; see its parity check")
    force, texts = forcing(client.ask, client.tokenize), parity.texts
    reports, ties, alone = [], [], []
    for report in differing:
        own = parity.answers[cell.id, report.composition]
        judged, found = judge(report, own, control, force=force, texts=texts)
        reports.append(judged)
        ties += [f"{report.composition}: {tie}" for tie in found]
        alone += agreeing(judged, own, parity.others(cell, report.composition))
    return reports, ties, sorted(set(alone))


def _of_reference(again: Relaunched) -> list[str]:
    """What is wrong with the reference itself."""
    if again.usable:
        return []
    wrong = parity_messages(report for report in again.reports if not report.ok)
    return ["the reference, launched again, against its first launch:", *wrong, again.control.message()]


def _company(cell: Cell, reports: Iterable[ParityReport], again: Relaunched, parity: ParitySession) -> list[str]:
    """Who answered just so too, and what that means."""
    mine, told = parity.of(cell), []
    alone = {
        name
        for report in reports
        for name in agreeing(report, mine[report.composition], parity.others(cell, report.composition))
    }
    if alone and again.usable:
        told.append(f"{', '.join(sorted(alone))} answered just so too: look at what these cells share")
    elif alone:
        told.append(_alone(sorted(alone)))
    if answers_alike(reports, mine, again.answers):
        told.append("launched again, the reference answered just so: its first launch was the broken one")
    return told


def _alone(cells: Iterable[str]) -> str:
    return f"{', '.join(cells)} answered just so too: the reference stands alone"


def _findings(parity: ParitySession, cell: Cell) -> list[str]:
    """Answers that no model gives, and the reference did not give either."""
    there = {} if cell.is_reference else parity.of(parity.reference)
    return [
        f"{name}: {finding}"
        for name, given in parity.of(cell).items()
        for finding in not_in_reference(check_answers(given), _insane(there.get(name)))
    ]


def _insane(given: Answers | None) -> Iterable:
    return () if given is None else check_answers(given)
