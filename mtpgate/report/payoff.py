"""Does MTP pay, from a stored run: what counts, and its sentences for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mtpgate.judge.payoff import Best, Payoff, Point, SpeedUp, payoff
from mtpgate.report.records import MeasurementRecord
from mtpgate.report.run import CellRun, Run
from mtpgate.report.sentence import first_line

WRONG = ("parity", "acceptance")
"""A cell that failed one of these is fast in giving other answers, or is counted wrongly."""


@dataclass(frozen=True)
class Told:
    """What a run says of it, and what was left out of that."""

    payoff: Payoff
    left_out: tuple[str, ...]
    """In words, with the reason."""


def payoff_of(run: Run) -> Told | None:
    """None where the reference, or every other cell, has no measurement that counts."""
    points, left_out = [], []
    for cell in run.cells:
        for record in cell.measurements:
            reason = _objection(cell, record)
            if reason is not None:
                left_out.append(f"{cell.id} {record.workload}: {reason}")
                continue
            speed, length = record.output_tokens_per_second, record.accept_length
            points.append(Point(cell.id, record.workload, record.concurrency, speed, record.repeats, length))
    reference = next((cell.id for cell in run.cells if cell.info.is_reference), None)
    speculative = [
        cell.id for cell in run.cells if any(record.accept_length is not None for record in cell.measurements)
    ]
    found = payoff(points, reference, speculative) if reference is not None else None
    return Told(found, tuple(left_out)) if found is not None else None


def lines(told: Told) -> Iterator[str]:
    """One sentence a workload, and the best cells' crossovers."""
    found = told.payoff
    for workload, best in found.best.items():
        yield f"{workload}: {_said(best, found)}"
    winners = {best.point.cell for best in found.best.values()}
    cells = [cell for cell in found.cells if cell.cell in winners] or found.cells[:1]
    for cell in cells:
        yield f"{cell.cell}: {cell.crossover}"


def short_lines(told: Told, most: int = 3) -> list[str]:
    """For the terminal: one a workload, and the crossovers that there is room for."""
    found = told.payoff
    said = []
    for workload, best in found.best.items():
        up = _best_with_mtp(best, found)
        rest = f", {up.point.cell} {up} of {found.reference}" if up is not None else ""
        said.append(f"MTP at {workload}: {_verb(best, found)}{rest}")
    crossings = [f"MTP: {cell.cell} {cell.crossover}" for cell in found.cells if cell.crossings]
    return [*said[:most], *crossings[: max(0, most - len(said))]]


def _said(best: Best, found: Payoff) -> str:
    up, fastest = _best_with_mtp(best, found), best.point
    repeats = len(fastest.repeats)
    parts = [f"MTP {_verb(best, found)}"]
    if up is not None:
        parts.append(f"{up.point.cell} at {up.point.tokens_per_second:.1f} tok/s is {up} of {found.reference}")
    if up is None or fastest.cell != up.point.cell:
        parts.append(f"fastest is {fastest.cell}, {fastest.tokens_per_second:.1f} tok/s")
    if best.tied:
        parts.append(f"{', '.join(best.tied)} may be as fast as {fastest.cell}")
    return f"{'; '.join(parts)} (n={repeats} repeat{'s' if repeats != 1 else ''} of one launch)"


def _best_with_mtp(best: Best, found: Payoff) -> SpeedUp | None:
    ups = (up for cell in found.cells for up in cell.speedups if up.point.workload == best.point.workload)
    return max(ups, key=lambda up: up.ratio, default=None)


def _verb(best: Best, found: Payoff) -> str:
    up = _best_with_mtp(best, found)
    if up is None:
        return "was not measured"
    return {"yes": "pays", "no": "does not pay", "unclear": "makes no clear difference"}[up.pays]


def _objection(cell: CellRun, record: MeasurementRecord) -> str | None:
    if record.void is not None:
        return f"void: {first_line(record.void, 120)}"
    if record.verdict_state == "unstable":
        return "unstable"
    if not record.repeats or min(record.repeats) <= 0:
        return "no figures"
    failed = [check.check for check in cell.checks if check.check in WRONG and check.state in ("failed", "known_bad")]
    return f"its {failed[0]} failed" if failed else None
