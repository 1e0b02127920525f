"""The end of a run on the terminal: at most one screen, failures first, and where the rest is."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mtpgate.report.outcome import Outcome, Row, judge_run
from mtpgate.report.page import accept_length, workloads_of
from mtpgate.report.payoff import payoff_of, short_lines
from mtpgate.report.run import Run
from mtpgate.report.sentence import Headline, headline, row_message, ways
from mtpgate.report.text import clean

_SHORT: Mapping[str, tuple[str, str]] = {
    "failed": ("FAIL", "bold red"),
    "broken": ("BROKEN", "bold yellow"),
    "fixed": ("FIXED", "bold red"),
    "lost": ("lost", "yellow"),
    "not_reached": ("no run", "yellow"),
    "blocked": ("block", "dim"),
    "unstable": ("unstab", "yellow"),
    "no_baseline": ("nobase", "yellow"),
    "insufficient": ("few", "yellow"),
    "known_bad": ("known", "magenta"),
    "passed": ("ok", "green"),
    "skipped": ("skip", "dim"),
}
"""At most six characters, so that five checks and the figures fit 80 columns; told apart without colour."""

_HEADERS = {"acceptance": "accept", "throughput": "speed", "startup": "start", "serving": "serve"}
_LIGHTS = {"red": "bold red", "green": "bold green"}
_FAILURES = 3


def render_summary(run: Run, *, width: int = 80, height: int = 24, terminal: bool = False, report: str = "") -> str:
    """The summary of ``run`` as text of at most ``width`` columns and ``height`` lines (16 or more).

    ``terminal`` adds colour; without it the text is plain. ``report`` is where the page lies, for the last line.
    """
    outcome = judge_run(run)
    said = headline(run, outcome)
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        force_terminal=terminal,
        color_system="standard" if terminal else None,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    head = _head(console, outcome, said)
    failures = _failures(width, [*outcome.red_rows, *outcome.broken_rows])
    told = payoff_of(run)
    pays = [Text(clean(line)) for line in short_lines(told)] if told is not None else []
    fixed_lines = len(head) + len(failures) + len(pays) + 5 + bool(report)
    shown = max(3, height - fixed_lines)
    for line in head:
        console.print(line)
    if outcome.rows:
        console.print(_table(run, outcome, outcome.rows[:shown], width))
        left = outcome.rows[shown:]
        if left:
            bad = sum(row.needs_attention for row in left)
            console.print(f"... and {len(left)} more cells, {f'{bad} of them with a fault' if bad else 'all well'}")
    for line in [*failures, *pays]:
        console.print(line, no_wrap=True, overflow="ellipsis")
    if report:
        console.print(Text(f"Report: {clean(report)}"), no_wrap=True, overflow="ignore", crop=False)
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def _head(console: Console, outcome: Outcome, said: Headline) -> list[Text]:
    """The verdict in at most three lines and the next step in at most two."""
    verdict = Text.assemble((f"{outcome.word}: ", _LIGHTS.get(outcome.light, "bold yellow")), clean(said.sentence))
    step = [Text(f"Next: {clean(said.next_step)}")] if said.next_step else []
    return [*_wrapped(console, verdict, 3), *(line for text in step for line in _wrapped(console, text, 2))]


def _wrapped(console: Console, text: Text, most: int) -> list[Text]:
    lines = list(text.wrap(console, console.width))
    if len(lines) > most:
        last = lines[most - 1]
        last.rstrip()
        last.truncate(console.width - 4)
        lines = [*lines[: most - 1], last + Text(" ...")]
    return lines


def _table(run: Run, outcome: Outcome, rows: Sequence[Row], width: int) -> Table:
    workloads = list(workloads_of(run))[:2]
    heads = [f"t/s {clean(workload)}"[:8] for workload in workloads]
    taken = 7 * len(outcome.columns) + sum(max(len(head), 6) + 1 for head in heads) + 7 + 5
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    table.add_column("cell", no_wrap=True)
    for check in outcome.columns:
        table.add_column(clean(_HEADERS.get(check, check))[:6], no_wrap=True, min_width=6)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True, min_width=6)
    table.add_column("accept\nlength", justify="right", no_wrap=True, min_width=6)
    table.add_column("ready\nin s", justify="right", no_wrap=True, min_width=5)
    for row in rows:
        speeds = {record.workload: record for record in row.cell.measurements}
        accepted = accept_length(row.cell)
        launch = row.cell.launch
        table.add_row(
            Text(_squeezed(clean(row.cell.id).replace("\n", " "), max(width - taken - 1, 10))),
            *(Text(*_SHORT.get(row.marks.get(check, ""), ("-", "dim"))) for check in outcome.columns),
            *(f"{speeds[name].output_tokens_per_second:.1f}" if name in speeds else "-" for name in workloads),
            "-" if accepted is None else f"{accepted:.2f}",
            f"{launch.startup_seconds:.0f}" if launch and launch.state == "ready" else "-",
        )
    return table


def _squeezed(text: str, width: int) -> str:
    """``text`` with its middle left out: cells of a matrix differ at the end of their ids as well as at the start."""
    if len(text) <= width:
        return text
    end = (width - 2) // 2
    return f"{text[: width - 2 - end]}..{text[-end:]}"


def _failures(width: int, rows: Sequence[Row]) -> list[Text]:
    """Two lines for each further failure, what and what next; the verdict has said the first one, and those like it."""
    lines = []
    further = [alike for _, alike in ways(rows) if rows and rows[0] not in alike]
    for alike in further[:_FAILURES]:
        check, said, step = row_message(alike[0])
        label = "" if alike[0].cell.id in said else f"{alike[0].cell.id} {check}: "
        more = f" (+{len(alike) - 1} cell{'s' if len(alike) > 2 else ''} alike)" if len(alike) > 1 else ""
        text = clean(f"{label}{said}").replace("\n", " ")
        if len(text) > width - 2 - len(more):
            text = f"{text[: width - 5 - len(more)]}..."
        lines.append(Text.assemble(("x ", "red"), text, more))
        lines.append(Text(f"  next: {clean(step)}".replace("\n", " ")))
    if len(further) > _FAILURES:
        cells = sum(len(alike) for alike in further[_FAILURES:])
        lines.append(Text(f"x ... and {cells} more cells in other ways: see the report"))
    return lines
