"""``python -m mtpgate fit``: search what fits for one cell of a matrix, on this machine, and write it down."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import to_jsonable_python

from mtpgate.errors import InfrastructureFault, UsageError
from mtpgate.fit_progress import FitProgress
from mtpgate.gpu.leases import lease
from mtpgate.matrix.cell import Cell
from mtpgate.plan import Prepared, Request, make_plan, prepare
from mtpgate.report.store import folder_name
from mtpgate.server.fit import Change, FitAttempt
from mtpgate.server.fit_search import FRACTION, GRAPH_LIMIT, Found, search
from mtpgate.server.fit_words import told
from mtpgate.trials import Trials

FINEST, COARSEST = 0.001, 0.2
"""Resolutions: SGLang's memory arithmetic is not finer than some hundred MiB, and coarser ones find nothing."""


@dataclass(frozen=True)
class Fitted:
    """A search that ended, and where it is written down."""

    cell: str
    found: Found
    document: dict[str, object]
    path: Path


def fit_cell(request: Request, *, out: Path, resolution: float, max_launches: int, progress: FitProgress) -> Fitted:
    """Search for the one cell that ``request`` names. Raises UsageError for what cannot be done as asked.

    Ctrl-C ends the launch that is running; what is known then is returned, and written down like any other end.
    """
    if not FINEST <= resolution <= COARSEST:
        raise UsageError(f"--resolution {resolution:g}: expected {FINEST:g} to {COARSEST:g}, e.g. 0.01")
    if max_launches < 1:
        raise UsageError(f"--max-launches {max_launches}: expected at least 1")
    plan = make_plan(request)
    if len(plan.selected) != 1:
        raise UsageError(f"{request.cells[0]} names {len(plan.selected)} cells: {', '.join(sorted(plan.selected))}")
    cell = next(cell for cell in plan.cells if cell.id in plan.selected)
    prepared = prepare(plan, on_progress=progress.note)
    name = f"fit-{folder_name(cell.id)}"
    logs = out / name
    _made(logs)

    def record(found: Found) -> Fitted:
        return _write(prepared, cell, found, out / f"{name}.json")

    attempts: list[FitAttempt] = []

    def tried(item: FitAttempt) -> None:
        attempts.append(item)
        progress.tried(item)
        # After each launch: whatever ends the search, what it learnt is on the disk.
        record(Found(tuple(attempts), "interrupted", "the search was cut short", resolution))

    def on_try(number: int, change: Change, known: str) -> None:
        progress.trying(number, max_launches, change, known)

    with lease(
        prepared.lease_candidates, max(1, cell.gpus), purpose=f"fit of {cell.id}", on_wait=progress.leasing
    ) as leased:
        trials = Trials(prepared, cell, leased, _numbered(logs), progress.launching)
        found = search(
            trials,
            fraction=_number(cell, FRACTION),
            graph_max_bs=_whole(cell, GRAPH_LIMIT) or _whole(cell, f"{GRAPH_LIMIT}_decode"),
            resolution=resolution,
            max_launches=max_launches,
            on_try=on_try,
            on_tried=tried,
        )
    return record(found)


def _numbered(folder: Path) -> Callable[[Change], Path]:
    """``launch-1.log``, ``launch-2.log``, ... for the launches as they come; an earlier fit's are removed."""
    for old in folder.glob("launch-*.log"):
        old.unlink(missing_ok=True)
    count = 0

    def path(_: Change) -> Path:
        nonlocal count
        count += 1
        return folder / f"launch-{count}.log"

    return path


def _number(cell: Cell, name: str) -> float | None:
    value = cell.arguments.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(cell: Cell, name: str) -> int | None:
    value = _number(cell, name)
    return None if value is None else int(value)


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out: {folder} cannot be made: {error.strerror}") from error


def _write(prepared: Prepared, cell: Cell, found: Found, path: Path) -> Fitted:
    document: dict[str, object] = {
        "schema": 1,
        "cell": cell.id,
        "matrix": prepared.plan.matrix.name,
        "sglang": prepared.facts.version,
        "model": prepared.model_identity,
        "hardware": prepared.plan.hardware,
        "arguments": dict(cell.arguments),
        "exact": found.exact,
        **to_jsonable_python(found, fallback=dict),
    }
    _replace(path, json.dumps(document, indent=1) + "\n")
    _replace(path.with_suffix(".txt"), f"{cell.id}\n{told(found)}\n")
    return Fitted(cell.id, found, document, path)


def _replace(path: Path, text: str) -> None:
    """Whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise InfrastructureFault(f"{path} cannot be written: {error.strerror}") from error
