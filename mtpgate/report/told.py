"""A diagnosis for a terminal, and as the JSON that scripts read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mtpgate.report.memory import ALIKE_GIB
from mtpgate.report.ranks import grouped, ranges
from mtpgate.server.budget import Budget, RankBudget
from mtpgate.server.diagnosis import Diagnosis
from mtpgate.server.timeline import PhaseSpan, Timeline

CONTRACT = ("phase", "kind", "rank", "numbers", "advice", "not_advice", "evidence")
MORE = ("summary", "budget", "unmatched")


def as_json(found: Diagnosis, timeline: Timeline) -> dict[str, Any]:
    """The keys of the contract first, then the sentence, the budget, the phases and the lines that are not known."""
    content = asdict(found)
    told = {key: content[key] for key in (*CONTRACT, *MORE)}
    told["phases"] = [asdict(span) | {"seconds": span.seconds} for span in timeline.phases]
    told["phases_by_rank"] = {
        str(rank or ""): [asdict(span) | {"seconds": span.seconds} for span in spans]
        for rank, spans in timeline.by_rank.items()
    }
    return told


def print_diagnosis(console: Console, found: Diagnosis, timeline: Timeline) -> None:
    """The whole diagnosis: what failed, the lines that show it, what to change, where the memory and the time went."""
    console.print(Text(f"{found.kind}: {found.summary}"))
    if found.kind != "ok":
        _lines(console, "The lines that show it:", (f"{line.line}: {line.text}" for line in found.evidence))
        _lines(console, "What to change:", found.advice.text)
        _lines(console, "What would not help:", found.not_advice)
    table = budget_table(found.budget)
    if table is not None:
        console.print(table)
    if len(timeline.phases) > 1:
        console.print(_phases(timeline.phases))
    lines = (f"{line.line}: {line.text}" for line in found.unmatched)
    if found.unmatched:
        _lines(console, "Start-up lines that this suite does not know (is it older than the SGLang?):", lines)


def _lines(console: Console, heading: str, lines: Iterable[str]) -> None:
    told = list(lines)
    if told:
        console.print(Text(heading))
        for line in told:
            console.print(Text(f"  {line}"))


def budget_table(budget: Budget) -> Table | None:
    """GiB by rank, equal ranks together; None where the log tells no memory."""
    ranks = [rank for rank in budget.ranks if rank.before_load is not None]
    if not ranks:
        return None
    groups = [
        (ranges([rank.rank or "all" for rank in alike]), min(alike, key=lambda rank: rank.left or 0.0))
        for alike in grouped(ranks, _figures, ALIKE_GIB)
    ]
    rows: dict[str, list[str]] = {}
    for at, (_, rank) in enumerate(groups):
        figures = {"before load": rank.before_load, **dict(rank.segments()), "wanted": rank.wanted}
        for name, size in figures.items():
            if size is not None:
                rows.setdefault(name, [""] * len(groups))[at] = f"{size:.2f}"
    fraction = "" if budget.fraction is None else f", mem_fraction_static {budget.fraction:g}"
    table = Table(title=f"Memory in GiB{fraction}", title_justify="left")
    table.add_column("")
    for name, _ in groups:
        table.add_column(name, justify="right")
    order = ("before load", *(name for name in rows if name not in _LAST and name != "before load"), *_LAST)
    for name in order:
        if name in rows:
            table.add_row(name.replace("_", " "), *rows[name])
    return table


_LAST = ("other", "left", "wanted")


def _figures(rank: RankBudget) -> dict[str, float | None]:
    return {**dict(rank.segments()), "wanted": rank.wanted}


def _phases(spans: tuple[PhaseSpan, ...]) -> Table:
    table = Table(title="Phases of the start-up", title_justify="left")
    for name in ("phase", "begin s", "took s", "memory before", "after"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    for span in spans:
        figures = (span.begin_seconds, span.seconds, span.memory_before_gib, span.memory_after_gib)
        digits = (0, 0, 2, 2)
        shown = ["" if value is None else f"{value:.{digit}f}" for value, digit in zip(figures, digits, strict=True)]
        table.add_row(span.phase, *shown)
    return table
