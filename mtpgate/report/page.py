"""The report as one self-contained HTML page: no network, no scripts, everything that is not ours escaped."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from mtpgate.errors import InfrastructureFault
from mtpgate.report import charts, payoff_chart
from mtpgate.report.advice import advice_figures, advice_lines, useless_advice
from mtpgate.report.memory import least_left, memory_of
from mtpgate.report.memory_chart import memory_bar
from mtpgate.report.memory_names import label_of, segment_class
from mtpgate.report.memory_words import change_of, gib, memory_lines, tokens, unmatched_lines
from mtpgate.report.outcome import STATES, WORDS, Row, judge_run
from mtpgate.report.payoff import lines as payoff_lines
from mtpgate.report.payoff import payoff_of
from mtpgate.report.records import CheckRecord, MeasurementRecord, WaiverRecord
from mtpgate.report.run import CellRun, Run, load_run
from mtpgate.report.sentence import first_line, headline, row_message, ways
from mtpgate.report.text import bounded, clean, duration, elapsed, log_tail, moment, percent, shortened

FULL_FAILURES = 40
"""So many failing cells are shown with their diagnosis and the end of their log; the others in one line each."""

OPEN_ROWS = 40
"""With more cells than this, those without a fault are folded away."""


def render(root: Path) -> Path:
    """Write ``index.html`` for the run stored under ``root`` and return its path.

    Raises :class:`UsageError` if there is no run, :class:`InfrastructureFault` if the page cannot be written.
    """
    text = page(load_run(root))
    path = root / "index.html"
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8", errors="replace")
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise InfrastructureFault(f"The report cannot be written: {path}: {error.strerror or error}.") from error
    return path


def page(run: Run) -> str:
    """The page of a run. Reads nothing but the servers' logs in the run's folder."""
    outcome = judge_run(run)
    red = [*outcome.red_rows, *outcome.broken_rows]
    return str(
        _environment()
        .get_template("index.html.j2")
        .render(
            run=run,
            info=run.info,
            outcome=outcome,
            headline=headline(run, outcome),
            seconds=elapsed(run.info.started, run.finished.finished) if run.finished else None,
            workloads=workloads_of(run),
            anchors={cell.id: index for index, cell in enumerate(run.cells)},
            broken={row.cell.id for row in outcome.broken_rows},
            failures=red[:FULL_FAILURES],
            ways=ways(red),
            shown_in_full={row.cell.id for row in red[:FULL_FAILURES]},
            more_failures=red[FULL_FAILURES:],
            waived=[row for row in outcome.rows if row.records("known_bad")],
            unreported=[row for row in outcome.rows if {"lost", "not_reached"} & set(row.marks.values())],
            attention=[row for row in outcome.rows if row.needs_attention],
            quiet=[row for row in outcome.rows if not row.needs_attention],
            fold=len(outcome.rows) > OPEN_ROWS,
            no_baseline=[row for row in outcome.rows if "no_baseline" in row.marks.values()],
            accept_scale=charts.scale_of(
                value for cell in run.cells for value in (accept_length(cell), cell.info.accept_length_floor)
            ),
            mtp=payoff_of(run),
            any_memory=any(has_memory(cell) for cell in run.cells),
            acceptance_asked="acceptance" in outcome.columns or any(accept_length(cell) for cell in run.cells),
            startup_scale=charts.scale_of(cell.launch.startup_seconds for cell in run.cells if cell.launch),
        )
    )


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters |= {
        "bounded": bounded,
        "duration": duration,
        "moment": moment,
        "percent": percent,
        "first_line": first_line,
        "shortened": shortened,
        "shell": shlex.join,
        "link": lambda path: quote(path, safe="/"),
        "code": _code,
    }
    environment.globals |= {
        "WORDS": WORDS,
        "STATES": STATES,
        "accept_length": accept_length,
        "advice": advice_lines,
        "advice_figures": advice_figures,
        "change_of": change_of,
        "gib": gib,
        "label_of": label_of,
        "least_left": least_left,
        "memory_bar": memory_bar,
        "memory_lines": memory_lines,
        "memory_of": memory_of,
        "segment_class": segment_class,
        "tokens": tokens,
        "unmatched_lines": unmatched_lines,
        "useless_advice": useless_advice,
        "charts": charts,
        "payoff_chart": payoff_chart,
        "payoff_lines": payoff_lines,
        "facts": _facts,
        "has_memory": has_memory,
        "is_web_link": lambda text: str(text or "").startswith(("https://", "http://")),
        "log_of": _log_of,
        "message_of": row_message,
        "reproduce": _reproduce,
        "scale_for": _scale_for,
        "tail_of": lambda run, cell: log_tail(run.root / _log_of(cell)),
        "measurement_of": _measurement_of,
        "first_launch_of": _first_launch_of,
        "excused": _excused,
        "seen": _seen,
    }
    return environment


def _finalize(value: object) -> object:
    if value is None:
        return ""
    return value if isinstance(value, Markup) or not isinstance(value, str) else clean(value)


def _code(text: str) -> Markup:
    """``text`` escaped, with what stands between backquotes as code."""
    parts = clean(text).split("`")
    if len(parts) % 2 == 0:
        return Markup("{}").format(clean(text))
    plain, code = Markup("{}"), Markup("<code>{}</code>")
    return Markup("").join((code if index % 2 else plain).format(part) for index, part in enumerate(parts))


def accept_length(cell: CellRun) -> float | None:
    """The cell's accept length: of its own check where there was one, else of its first measurement that has one."""
    value = (cell.acceptance or {}).get("accept_length")
    if isinstance(value, int | float):
        return float(value)
    return next((record.accept_length for record in cell.measurements if record.accept_length is not None), None)


def has_memory(cell: CellRun) -> bool:
    """Whether there is anything to show of the memory of the cell's launch."""
    memory = memory_of(cell.launch) if cell.launch else None
    return bool(memory or memory_lines(cell, memory) or (cell.launch and unmatched_lines(cell.launch)))


def workloads_of(run: Run) -> dict[str, int]:
    """Each workload's name and its concurrency, the smallest first."""
    found = {record.workload: record.concurrency for cell in run.cells for record in cell.measurements}
    return dict(sorted(found.items(), key=lambda item: (item[1], item[0])))


def _measurement_of(cell: CellRun, workload: str) -> MeasurementRecord | None:
    return next((record for record in cell.measurements if record.workload == workload), None)


def _first_launch_of(cell: CellRun, workload: str) -> MeasurementRecord | None:
    """What was measured before the relaunch."""
    return next((record for record in cell.first_launches if record.workload == workload), None)


def _excused(row: Row) -> list[tuple[CheckRecord, WaiverRecord, list[str]]]:
    """The known-bad checks of a cell with their waivers; those that only followed from one are named with it."""
    waivers = row.cell.info.waivers
    records = row.records("known_bad")
    own = [record for record in records if any(waiver.check == record.check for waiver in waivers)] or list(records)
    also = list(dict.fromkeys(record.check for record in records if record not in own))
    return [(record, _waiver_of(record, waivers), also if record is own[0] else []) for record in own]


def _waiver_of(record: CheckRecord, waivers: Sequence[WaiverRecord]) -> WaiverRecord:
    """The waiver that excused a check: its message begins with the reason."""
    of_check = [waiver for waiver in waivers if waiver.check == record.check]
    named = [waiver for waiver in of_check if record.message.startswith(f"known bad: {waiver.reason}")]
    return next(iter(named or of_check), WaiverRecord(check="", reason="no waiver is recorded"))


def _seen(record: CheckRecord) -> str:
    """What failed, without the waiver's reason in front of it."""
    head, _, rest = record.message.partition("\n")
    return first_line(rest if head.startswith("known bad:") and rest.strip() else record.message)


def _scale_for(run: Run, workload: str) -> float:
    found = [record for cell in run.cells if (record := _measurement_of(cell, workload))]
    return charts.scale_of(
        value for record in found for value in (record.output_tokens_per_second, record.baseline_mean, *record.repeats)
    )


def _reproduce(run: Run, row: Row) -> str:
    checks = list(dict.fromkeys(record.check for record in row.records("failed", "fixed", "broken")))
    options = run.info.options or ((f"--matrix={run.info.matrix_path}",) if run.info.matrix_path else ())
    return shlex.join(["pytest", "-m", " or ".join(checks) or "mtp", "--cell", row.cell.id, *options])


def _log_of(cell: CellRun) -> str:
    return f"{cell.folder}/{cell.launch.log if cell.launch else 'server.log'}"


def _facts(value: Mapping[str, object] | None) -> list[tuple[str, str]]:
    """The plain entries of what a check kept, for a list of names and values."""
    shown = []
    for key, item in (value or {}).items():
        if isinstance(item, str | int | float | bool) and item != "":
            text = f"{item:.4g}" if isinstance(item, float) else str(item)
            shown.append((str(key).replace("_", " ").replace(" gib", " GiB"), first_line(text, 200)))
    return shown


__all__ = ["accept_length", "page", "render", "workloads_of"]
