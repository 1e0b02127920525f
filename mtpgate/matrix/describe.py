"""A matrix's cells for scripts (``cells --json``) and for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from mtpgate.matrix.cell import ArgumentValue, Cell, Expansion, PrunedCell, Waiver

CellRow = dict[str, object]


def describe(expansion: Expansion) -> dict[str, list[CellRow]]:
    """``cells`` (``id``, ``args``, ``waivers``, ...) and ``pruned`` (``id``, ``reason``, ...), ready for JSON.

    The three and two keys in brackets are a contract with scripts; the others may grow.
    """
    return {
        "cells": [_cell(cell) for cell in expansion.cells],
        "pruned": [_pruned(pruned) for pruned in expansion.pruned],
    }


def _cell(cell: Cell) -> CellRow:
    return {
        "id": cell.id,
        "args": dict(cell.arguments),
        "environment": dict(cell.environment),
        "gpus": cell.gpus,
        "reference": cell.is_reference,
        "waivers": [_waiver(waiver) for waiver in cell.waivers],
    }


def _waiver(waiver: Waiver) -> CellRow:
    given = {name: value for name, value in vars(waiver).items() if value is not None}
    return {name: str(value) for name, value in given.items()}


def _pruned(pruned: PrunedCell) -> CellRow:
    return {"id": pruned.id, "reason": pruned.reason, "same_launch_as": pruned.same_launch_as}


def tables(expansion: Expansion) -> list[RenderableType]:
    """For a terminal: the cells, with what is the same in all of them said once below, and the pruned, if any."""
    common = _common(expansion.cells)
    cells = Table("cell", "arguments", "known bad", title=f"{len(expansion.cells)} cells", title_justify="left")
    for cell in expansion.cells:
        own = {name: value for name, value in cell.arguments.items() if name not in common}
        name = Text(cell.id, style="bold") + Text(" (reference)" if cell.is_reference else "", style="dim")
        cells.add_row(name, Text(_shown(own)), Text(", ".join(sorted({waiver.check for waiver in cell.waivers}))))
    parts: list[RenderableType] = [cells]
    if common:
        parts.append(Text(f"in all cells: {_shown(common)}", style="dim"))
    if expansion.pruned:
        title = f"{len(expansion.pruned)} not launched"
        pruned = Table("pruned", "why", title=title, title_justify="left")
        for item in expansion.pruned:
            pruned.add_row(Text(item.id), Text(item.reason))
        parts.append(pruned)
    return parts


def _common(cells: Iterable[Cell]) -> dict[str, ArgumentValue]:
    first, *rest = cells
    return {
        name: value
        for name, value in first.arguments.items()
        if all(cell.arguments.get(name) == value for cell in rest)
    }


def _shown(arguments: Mapping[str, ArgumentValue]) -> str:
    return ", ".join(f"{name.removeprefix('speculative_')} {value}" for name, value in arguments.items())
