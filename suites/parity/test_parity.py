"""Does the cell still say the same? Greedy answers, token by token, against the reference cell's."""

from collections.abc import Iterable

import pytest

from fixtures.launches import Blocked, Launched
from fixtures.outcomes import remark
from fixtures.parity import Compared, Decoder, ParitySession
from mtpgate.checks.answers import Answers
from mtpgate.checks.compositions import BATCH, SINGLE
from mtpgate.checks.control import Control, calibrate, table_of
from mtpgate.checks.forcing import TOP, forcing
from mtpgate.checks.margins import agreeing, judge, without_ties
from mtpgate.checks.parity import ParityReport, compare_answers, parity_messages
from mtpgate.checks.reach import reached
from mtpgate.checks.sanity import check_answers, not_in_reference
from mtpgate.checks.weighing import answers_alike, weigh
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
    asked = parity.compositions(cell)
    for composition in asked:
        # The gaps are read from the log-probabilities of the very answers that the cells are compared with.
        given = parity.ask(client, composition, top_logprobs=TOP if cell.is_reference else 0)
        parity.answers[cell.id, composition.name] = given
        store.write_json(cell.id, f"answers-{composition.name}", given.bare())
        if (parity.reference.id, composition.name) not in parity.answers:
            raise Blocked(f"not compared: the reference cell {parity.reference.id} gave no answers; see its checks")
    mine = parity.of(cell)
    reach = reached(cell, server.server_info, asked, mine)
    if cell.is_reference:
        reports = _control(client, parity)
        ties, alone = [], []
    else:
        theirs = parity.of(parity.reference)
        decode = Decoder(client)
        differing = tuple(compare_answers(theirs[name], given, decode=decode) for name, given in mine.items())
        reports, ties, alone = _judged(cell, differing, client, parity)
    control = parity.control
    assert control is not None
    findings = _findings(parity, cell)
    figures = {
        "reference": parity.reference.id,
        "prompts": reports[0].compared,
        "compositions": ", ".join(mine),
        "tokens": sum(report.tokens for report in reports),
        "differences": sum(len(report.differences) for report in reports),
        "near_ties": len(ties),
        "tolerance": control.tolerance,
        "chunked_prompts": reach.chunked,
        "reach": reach,
        "control": {"noise": control.noise, "positions": control.positions, "turned": control.turned},
        "reports": reports,
    }
    store.write_json(cell.id, "parity", figures)
    if not cell.is_reference:
        parity.compared[cell.id] = Compared(differing, figures)
    what = f"{cell.id} against " + ("itself, asked again" if cell.is_reference else parity.reference.id)
    # What is wrong comes first: the report's first line quotes the begin of this.
    wrong = [*parity_messages(report for report in reports if not report.ok), *findings[:SHOWN]]
    wrong += [_alone(alone)] if alone else []
    fine = [*parity_messages(report for report in reports if report.ok), *ties[:SHOWN]]
    fine += [control.message()] if cell.is_reference else []
    message = f"{what}: " + "\n".join([*wrong, *fine, *reach.notes])
    assert all(report.ok for report in reports), message
    assert not findings, message
    if cell.is_reference and not control.usable:
        raise AssertionError(f"{what}: {control.message()}\n" + "\n".join(fine))
    remark(request.node, message)


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
    if compared.ok:
        tokens = sum(report.tokens for report in compared.reports)
        remark(request.node, f"nothing to weigh: all {tokens} tokens of {cell.id} equal the reference's")
        return
    again, scales = parity.weigh_on(reference_again)
    mine = parity.of(cell)
    reports, told = [], []
    for differing in compared.reports:
        report, ties = weigh(differing, mine[differing.composition], again.control, scales)
        reports.append(report)
        told += [f"{report.composition}: {tie}" for tie in ties]
    weighed = sum(len(report.differences) for report in compared.reports)
    store.write_json(
        cell.id,
        "parity",
        {
            **compared.figures,
            "weighed": weighed,
            "weighed_near_ties": len(told),
            "weighed_differences": weighed - len(told),
            "weighed_tolerance": again.control.tolerance,
            "weighed_reports": reports,
            "reference_again": again.reports,
        },
    )
    what = f"{cell.id} weighed by {parity.reference.id}, launched again"
    wrong = parity_messages(report for report in reports if not report.ok)
    if not again.usable:
        wrong += ["The reference does not repeat itself:", *_reference_wrong(again.reports, again.control)]
    alone = {
        name
        for differing in reports
        for name in agreeing(differing, mine[differing.composition], parity.others(cell, differing.composition))
    }
    if alone and again.usable:
        wrong.append(f"{', '.join(sorted(alone))} answered just so too: look at what these cells share")
    elif alone:
        wrong.append(_alone(sorted(alone)))
    if wrong and answers_alike(reports, mine, again.answers):
        wrong.append("Launched again, the reference answered just so: its first launch was the broken one")
    turned = [f"the reference itself left {again.turned} answers at a near-tie"] if again.turned else []
    fine = [
        f"{len(told)} of {weighed} answers that left it are near-ties over their whole length "
        f"(tolerance {again.control.tolerance:.2g})",
        *told[:SHOWN],
        again.control.message(),
        *turned,
    ]
    message = f"{what}: " + "\n".join([*wrong, *fine])
    assert not wrong, message
    remark(request.node, message)


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


def _reference_wrong(reports: Iterable[ParityReport], control: Control) -> list[str]:
    return [*parity_messages(report for report in reports if not report.ok), control.message()]


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
