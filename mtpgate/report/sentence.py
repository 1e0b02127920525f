"""The verdict in words, for whoever reads it at seven in the morning: what is wrong, how much of it, what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mtpgate.report.advice import next_step
from mtpgate.report.outcome import WORDS, Outcome, Row, unsure_measurements
from mtpgate.report.run import Run
from mtpgate.report.text import shortened

_RECORD_MORE = "Run these cells again; where too little is recorded, record more: `pytest -m mtp --record-baselines`."

LISTED = 2
"""So many further cells are named in the sentence; more are only counted."""


@dataclass(frozen=True)
class Headline:
    """``sentence`` follows the light's word; ``next_step`` is empty where there is nothing to do. Plain text."""

    sentence: str
    next_step: str = ""


def headline(run: Run, outcome: Outcome) -> Headline:
    """Say what ``outcome`` means."""
    if outcome.light == "red":
        fails = any(row.worst != "fixed" for row in outcome.red_rows)
        what = "failed" if fails else "passed though known bad"
        sentence, step = _about(outcome.red_rows, outcome, what)
        tail = f" The run was also cut short: {_cut(run, outcome)}" if run.is_cut_short else ""
        tail = f" The run is in progress: {_so_far(outcome)}" if run.is_going_on else tail
        return Headline(sentence + tail, step)
    if outcome.light in ("going", "cut"):
        return _unfinished(run, outcome)
    if outcome.light == "broken":
        if not outcome.broken_rows:
            return Headline(
                "pytest says that something failed, though no check of a cell did.",
                "Look at pytest's own output: it is something beside the checks.",
            )
        return Headline(*_about(outcome.broken_rows, outcome, "got no answer, because the machine failed"))
    if outcome.light == "empty":
        return _nothing(outcome)
    waived = f"; {outcome.counts['known_bad']} known bad (waived)" if outcome.counts.get("known_bad") else ""
    waived += f", {outcome.counts['blocked']} blocked by that" if outcome.counts.get("blocked") else ""
    well = f"{_count(outcome.counts['passed'], 'check')} of {_count(len(outcome.rows), 'cell')} passed{waived}."
    return _unjudged(run, outcome, well) if outcome.light == "unjudged" else Headline(well)


def first_line(text: str, limit: int = 300) -> str:
    """The first line that is not empty, cut to ``limit`` characters; with the second if it only announces that."""
    lines = [part.strip() for part in text.splitlines() if part.strip()]
    line = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return shortened(line, limit)


def row_message(row: Row) -> tuple[str, str, str]:
    """The worst of a row: its check, what is wrong in one sentence, and the next step."""
    record = next(iter(row.records("failed", "fixed", "broken")), None)
    launch = row.cell.launch
    diagnosis = launch.diagnosis if launch and launch.state == "failed" else None
    if record is None:
        summary = str((diagnosis or {}).get("summary") or "the server did not start, so nothing could be asked of it")
        return "startup", first_line(summary), next_step("startup", "failed", diagnosis)
    said = first_line(record.message) or f"{record.title or record.check}: {WORDS[record.state]}, without a message"
    step = first_line(record.next_step) or next_step(record.check, record.state, diagnosis)
    return record.check, said, step


def _cut(run: Run, outcome: Outcome) -> str:
    why = f" ({first_line(run.stopped_because)})" if run.stopped_because else ""
    lost = f" {len(run.lost)} lost with their worker." if run.lost else ""
    killed = "" if run.finished else " The run was killed, or is still going on."
    return f"{outcome.reported} of {_count(outcome.collected, 'check')} reported{why}.{lost}{killed}"


def _unfinished(run: Run, outcome: Outcome) -> Headline:
    if outcome.light == "going":
        return Headline(_so_far(outcome), "Wait for its end: the page is written again then.")
    return Headline(_cut(run, outcome), "Run `pytest -m mtp` again; what was reported is below.")


def _so_far(outcome: Outcome) -> str:
    return f"{outcome.reported} of {_count(outcome.collected, 'check')} reported so far."


def _unjudged(run: Run, outcome: Outcome, well: str) -> Headline:
    unstable = [row for row in outcome.rows if "unstable" in row.marks.values()]
    if unstable:
        said = first_line(unstable[0].records("unstable")[0].message) or f"{unstable[0].cell.id} is unstable"
        more = f" {_count(len(unstable) - 1, 'more cell')} alike." if len(unstable) > 1 else ""
        return Headline(
            f"{_stop(said)}{more} All else is well: {well}",
            "See what else used the machine in either launch; a drop that is real will breach again next night.",
        )
    without = [row for row in outcome.rows if "no_baseline" in row.marks.values()]
    if without:
        return Headline(
            f"No baseline: {_named(without, outcome)} measured with nothing to compare, so speed was not judged. "
            f"All else is well: {well}",
            "If this run is as it should be, record it: `pytest -m mtp --record-baselines`.",
        )
    unsure = unsure_measurements(run)
    if not unsure:
        row = next(row for row in outcome.rows if "insufficient" in row.marks.values())
        said = (
            first_line(row.records("insufficient")[0].message) or f"{row.cell.id} was measured too rarely to be judged"
        )
        return Headline(f"{_stop(said)} All else is well: {well}", _RECORD_MORE)
    cell, measurement = unsure[0]
    more = f" {_count(len(unsure) - 1, 'more measurement')} alike." if len(unsure) > 1 else ""
    text = f": {first_line(measurement.verdict_text)}" if measurement.verdict_text else ""
    named = measurement.verdict_text if cell.id in measurement.verdict_text else ""
    said = _stop(first_line(named) or f"{cell.id} {measurement.workload} is {measurement.verdict_state}{text}") + more
    return Headline(f"{said} All else is well: {well}", _RECORD_MORE)


def _about(rows: Sequence[Row], outcome: Outcome, what: str) -> tuple[str, str]:
    """The number of cells, the first of them in full, how many are like it; and the first one's next step."""
    first = rows[0]
    check, said, step = row_message(first)
    said = said if first.cell.id in said else f"{first.cell.id} {check}: {said}"
    alike = [row for row in rows[1:] if _group(row) == _group(first)]
    others = [row for row in rows[1:] if row not in alike]
    tail = f" The same in {_listed(alike, _id)}." if alike else ""
    if others:
        tail += f" Also {_listed(others, _id_and_check)}{'' if len(others) <= LISTED else ' in other ways'}."
    return f"{len(rows)} of {_count(len(outcome.rows), 'cell')} {what}: {_stop(said)}{tail}", step


def _listed(rows: Sequence[Row], name: Callable[[Row], str]) -> str:
    return " and ".join(name(row) for row in rows) if len(rows) <= LISTED else _count(len(rows), "more cell")


def _id(row: Row) -> str:
    return row.cell.id


def _id_and_check(row: Row) -> str:
    return f"{row.cell.id} ({row_message(row)[0]})"


def ways(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Failing cells by how they failed (check and state; at start-up also phase and kind), the commonest first."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(_group(row), []).append(row)
    return [
        (", ".join(part for part in way if part), alike)
        for way, alike in sorted(found.items(), key=lambda x: -len(x[1]))
    ]


def _group(row: Row) -> tuple[str, ...]:
    check, _, _ = row_message(row)
    launch = row.cell.launch
    diagnosis = (launch.diagnosis if launch and check == "startup" else None) or {}
    return f"{check} {WORDS[row.worst]}", str(diagnosis.get("phase", "")), str(diagnosis.get("kind", ""))


def _nothing(outcome: Outcome) -> Headline:
    found = ", ".join(f"{count} {WORDS[state]}" for state, count in outcome.counts.items())
    what = f"No check passed ({found})" if found else f"No check was asked of {_count(len(outcome.rows), 'cell')}"
    return Headline(
        f"{what}, so this says nothing about the product.",
        "Look at `python -m mtpgate cells` and at the options on the command line below.",
    )


def _named(rows: Sequence[Row], outcome: Outcome) -> str:
    if len(rows) == 1:
        return f"{rows[0].cell.id} was"
    every = len(rows) == len(outcome.rows)
    return f"all {len(rows)} cells were" if every else f"{len(rows)} of {len(outcome.rows)} cells were"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _stop(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?", "…")) else f"{sentence}."
