"""Baselines as a person reads them in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from mtpgate.judge.baselines import BaselineKey, BaselineLaunch
from mtpgate.judge.proposals import Proposal
from mtpgate.review.diff import Difference
from mtpgate.review.past import Past
from mtpgate.review.show import Accepted

NOT_IN_LEGEND = ("matrix", "cell", "workload")


def shown(groups: Sequence[Accepted], *, launches: bool) -> list[RenderableType]:
    """The accepted launches by cell and workload; with ``launches`` each of them too. Keys are told once, by letter."""
    letters = _letters(group.key for group in groups)
    table = _table("cell", "workload", ">n", ">tok/s", ">spread", ">accept length", ">findable drop", "newest", "key")
    for group in groups:
        newest = group.launches[-1]
        table.add_row(
            Text(group.key.cell, style="bold"),
            group.key.workload,
            str(len(group.launches)),
            f"{group.mean:.1f}",
            _percent(group.spread),
            _number(group.accept_length, 2),
            _drop(group.findable_drop),
            f"{newest.when:%Y-%m-%d}",
            letters[_machine(group.key)],
        )
    parts: list[RenderableType] = [table, *_legend(letters)]
    parts.append(Text("findable drop: found in one night with probability 0.9, among 40 figures", style="dim"))
    if launches:
        parts += [_launches(group.launches) for group in groups]
    return parts


def accepted_now(launches: Iterable[BaselineLaunch]) -> list[RenderableType]:
    """What has just been accepted."""
    return [
        Text(
            f"accepted: {launch.key.cell} {launch.key.workload}: {launch.tokens_per_second:.1f} tok/s"
            + (f", accept length {launch.accept_length:.2f}" if launch.accept_length is not None else "")
        )
        for launch in launches
    ]


def waiting(proposals: Sequence[Proposal]) -> list[RenderableType]:
    """Proposed launches with what a reviewer has to know of them."""
    letters = _letters(proposal.launch.key for proposal in proposals)
    table = _table("cell", "workload", ">tok/s", ">repeats", "from", "key")
    for proposal in proposals:
        launch = proposal.launch
        table.add_row(
            Text(launch.key.cell, style="bold"),
            launch.key.workload,
            f"{launch.tokens_per_second:.1f}",
            str(len(launch.repeats)),
            launch.origin.imported_from,
            letters[_machine(launch.key)],
        )
    notes = sorted({note for proposal in proposals for note in proposal.notes})
    return [table, *_legend(letters), *(Text(f"mind: {note}") for note in notes)]


def compared(lines: Sequence[Difference]) -> list[RenderableType]:
    """A run against the baselines; changed keys are told once each, with the measurements that they concern."""
    table = _table("cell", "workload", ">tok/s", ">baseline", ">n", ">change", ">accept length", ">findable drop", "")
    for line in lines:
        table.add_row(
            Text(line.cell, style="bold"),
            line.workload,
            _number(line.tokens_per_second, 1),
            _number(line.mean, 1),
            str(line.n or ""),
            _change(line.speed),
            _number(line.accept_length, 2) + (f" ({_change(line.acceptance)})" if line.acceptance is not None else ""),
            _drop(line.findable_drop),
            Text(line.note or ("another key, see below" if line.changed else "")),
        )
    groups: dict[tuple[str, ...], list[Difference]] = {}
    for line in lines:
        if line.changed:
            groups.setdefault(line.changed, []).append(line)
    parts: list[RenderableType] = [table]
    for changed, concerned in groups.items():
        left = concerned[0].still_comparable
        which = "all measurements" if len(concerned) == len(lines) else _few(concerned)
        parts.append(Text(f"\nThe key has changed for {which}:", style="bold"))
        parts += [Text(f"  {part}") for part in changed]
        parts.append(Text(f"  still comparable: {' and '.join(left)}" if left else "  nothing is still comparable"))
        parts.append(Text("  what differs is no verdict: for one, accept launches under the new key"))
    around = [line for line in lines if line.conditions]
    if around:
        parts.append(Text("\nOther conditions than the baseline's:", style="bold"))
        parts += [Text(f"  {line.cell} {line.workload}: {'; '.join(line.conditions)}") for line in around]
    return parts


def remembered(lines: Sequence[Past]) -> list[RenderableType]:
    """Every measured launch, oldest first."""
    letters = _letters(line.entry.key for line in lines)
    table = _table("cell", "workload", "measured", ">tok/s", ">accept length", "key", "what became of it")
    for line in lines:
        entry = line.entry
        again = f" (launch {entry.launch})" if entry.launch > 1 else ""
        table.add_row(
            Text(entry.key.cell, style="bold"),
            entry.key.workload,
            f"{entry.when:%Y-%m-%d %H:%M}{again}",
            _number(entry.tokens_per_second, 1),
            _number(entry.accept_length, 2),
            letters[_machine(entry.key)],
            Text(line.state + (f": {line.accepted.why}" if line.accepted else "")),
        )
    return [table, *_legend(letters)]


def _launches(launches: Sequence[BaselineLaunch]) -> Table:
    key = launches[0].key
    table = _table("measured", ">tok/s", ">accept length", "SGLang", "run", "accepted", "why")
    table.title, table.title_justify = f"{key.cell} {key.workload}", "left"
    for launch in launches:
        origin = launch.origin
        accepted = " ".join(part for part in (origin.accepted and f"{origin.accepted:%Y-%m-%d}", origin.who) if part)
        table.add_row(
            f"{launch.when:%Y-%m-%d %H:%M}",
            f"{launch.tokens_per_second:.1f}",
            _number(launch.accept_length, 2),
            origin.sglang_version or key.sglang,
            origin.imported_from or origin.run,
            accepted,
            Text(launch.why),
        )
    return table


def _machine(key: BaselineKey) -> tuple[tuple[str, str], ...]:
    """The parts of a key that cells share."""
    parts = {part: str(value) for part, value in key.model_dump().items() if part not in NOT_IN_LEGEND and value}
    return (*parts.items(), ("matrix", key.matrix))


def _letters(keys: Iterable[BaselineKey]) -> dict[tuple[tuple[str, str], ...], str]:
    found: dict[tuple[tuple[str, str], ...], str] = {}
    for key in keys:
        number = len(found)
        found.setdefault(_machine(key), chr(ord("A") + number) if number < 26 else str(number))
    return found


def _legend(letters: dict[tuple[tuple[str, str], ...], str]) -> list[RenderableType]:
    return [
        Text(f"{letter}: " + ", ".join(f"{part} {value}" for part, value in machine), style="dim")
        for machine, letter in letters.items()
    ]


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    return table


def _few(lines: Sequence[Difference], most: int = 6) -> str:
    names = [f"{line.cell} {line.workload}" for line in lines]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _number(value: float | None, digits: int) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _drop(value: float | None) -> str:
    return "none" if value is not None and value >= 1 else _percent(value)


def _change(ratio: float | None) -> str:
    return "" if ratio is None or math.isnan(ratio) else f"{ratio - 1:+.1%}"
