"""What a stored run comes to: one light, and a state for each cell and check, failures first.

The light is the worst that is true of the run:

1. ``red``: a check failed, a waived check passes again, or a launch failed though no check says so;
2. ``going``: the run is in progress;
3. ``cut``: the run did not come to its end, or checks that were collected have no outcome;
4. ``broken``: the machine failed, so there is no answer about the product, or something beside the checks failed;
5. ``empty``: no check passed at all;
6. ``unjudged``: all is well except that a speed has nothing to be compared with, or too little, or is unstable;
7. ``green``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from mtpgate.report.records import BY_SEVERITY, CHECKS, CheckRecord, MeasurementRecord
from mtpgate.report.run import CellRun, Run

Light = Literal["red", "going", "cut", "broken", "empty", "unjudged", "green"]

STATES: tuple[str, ...] = (*BY_SEVERITY[:3], "lost", "not_reached", *BY_SEVERITY[3:])
"""All states of a cell's check, worst first; the state of several tests of one check is the worst of theirs."""

WORDS: Mapping[str, str] = {
    "failed": "failed",
    "broken": "broken",
    "fixed": "fixed",
    "lost": "lost",
    "not_reached": "not run",
    "blocked": "blocked",
    "unstable": "unstable",
    "no_baseline": "no baseline",
    "insufficient": "too little data",
    "known_bad": "known bad",
    "passed": "passed",
    "skipped": "skipped",
}

LIGHT_WORDS: Mapping[Light, str] = {
    "red": "RED",
    "going": "IN PROGRESS",
    "cut": "CUT SHORT",
    "broken": "BROKEN",
    "empty": "NOTHING RAN",
    "unjudged": "NOT JUDGED",
    "green": "GREEN",
}

UNSURE = ("unstable", "insufficient", "void")
UNJUDGED = frozenset({"unstable", "no_baseline", "insufficient"})


@dataclass(frozen=True)
class Row:
    """A cell with the state of each check that was asked of it; a check that was not asked is missing."""

    cell: CellRun
    marks: Mapping[str, str]

    @property
    def worst(self) -> str:
        return min(self.marks.values(), key=STATES.index, default="not_reached")

    @property
    def needs_attention(self) -> bool:
        return self.worst not in ("passed", "skipped", "known_bad")

    def records(self, *states: str) -> tuple[CheckRecord, ...]:
        """The cell's outcomes in one of ``states``, worst first, in the order in which checks are asked."""
        chosen = [record for record in self.cell.checks if record.state in states]
        return tuple(sorted(chosen, key=lambda record: (STATES.index(record.state), _position(record.check))))

    @property
    def launch_failed_unseen(self) -> bool:
        """The launch failed, but the check that would say so was not asked."""
        failed = self.cell.launch is not None and self.cell.launch.state == "failed"
        return (failed or "blocked" in self.marks.values()) and not self.records("failed", "broken", "known_bad")


@dataclass(frozen=True)
class Outcome:
    """What the renderers show first."""

    light: Light
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    """Failures first, else in the matrix's order."""
    counts: Mapping[str, int]
    """Tests by state, in the order of :data:`STATES`, without those that are zero."""
    reported: int
    collected: int

    @property
    def word(self) -> str:
        return LIGHT_WORDS[self.light]

    @property
    def red_rows(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.records("failed", "fixed") or row.launch_failed_unseen)

    @property
    def broken_rows(self) -> tuple[Row, ...]:
        red = self.red_rows
        return tuple(row for row in self.rows if row.records("broken") and row not in red)


def judge_run(run: Run) -> Outcome:
    """Derive the outcome of ``run``; never raises for a run that :func:`load_run` returned."""
    asked: dict[str, dict[str, list[str]]] = {cell.id: {} for cell in run.cells}
    states = [(record.cell, record.check, str(record.state)) for record in run.checks]
    lost = {check.test_id for check in run.lost}
    states += [(check.cell, check.check, "lost") for check in run.lost]
    states += [(check.cell, check.check, "not_reached") for check in run.missing if check.test_id not in lost]
    for cell_id, check, state in states:
        asked.setdefault(cell_id, {}).setdefault(check, []).append(state)
    rows = [
        Row(cell, {check: min(found, key=STATES.index) for check, found in asked[cell.id].items()})
        for cell in run.cells
    ]
    rows.sort(key=_urgency)
    counted = Counter(state for _, _, state in states)
    columns = sorted({check for marks in asked.values() for check in marks}, key=_position)
    outcome = Outcome(
        light="green",
        columns=tuple(columns),
        rows=tuple(rows),
        counts={state: counted[state] for state in STATES if counted[state]},
        reported=len(run.checks),
        collected=max(len(run.checks), len(run.expected or ()), len(states)),
    )
    return replace(outcome, light=_light(run, outcome))


def unsure_measurements(run: Run) -> tuple[tuple[CellRun, MeasurementRecord], ...]:
    """The measurements that could not be judged either way."""
    return tuple(
        (cell, measurement)
        for cell in run.cells
        for measurement in cell.measurements
        if measurement.verdict_state in UNSURE
    )


def fails_elsewhere(run: Run, outcome: Outcome) -> bool:
    """pytest says that something failed, and it was none of the cells' checks."""
    status = run.finished.exit_status if run.finished else 0
    return status == 1 and not outcome.red_rows and not outcome.broken_rows


def _light(run: Run, outcome: Outcome) -> Light:
    lights: tuple[tuple[Light, bool], ...] = (
        ("red", bool(outcome.red_rows)),
        ("going", run.is_going_on),
        ("cut", run.is_cut_short),
        ("broken", bool(outcome.broken_rows) or fails_elsewhere(run, outcome)),
        ("empty", not outcome.counts.get("passed")),
        ("unjudged", bool(UNJUDGED & set(outcome.counts) or unsure_measurements(run))),
    )
    return next((light for light, is_true in lights if is_true), "green")


def _urgency(row: Row) -> tuple[int, tuple[int, str]]:
    if not row.needs_attention:
        return len(STATES), (0, "")
    # Of two failures the earlier check comes first: a server that does not start matters more than one that is slow.
    first = min((check for check, state in row.marks.items() if state == row.worst), key=_position, default="")
    return STATES.index(row.worst), _position(first)


def _position(check: str) -> tuple[int, str]:
    return (CHECKS.index(check) if check in CHECKS else len(CHECKS), check)
