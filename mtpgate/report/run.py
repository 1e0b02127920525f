"""A stored run, read back: complete or cut short, with whatever lines a kill left half-written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from mtpgate.errors import UsageError
from mtpgate.report.records import (
    BY_SEVERITY,
    SCHEMA,
    CellRecord,
    CheckRecord,
    ExpectedCheck,
    FinishRecord,
    LaunchRecord,
    LostCheck,
    MeasurementRecord,
    RunInfo,
)
from mtpgate.report.store import folder_name, is_claimed

T = TypeVar("T")

_STOPPED = {2: "interrupted", 3: "an internal error of pytest", 4: "wrong usage of pytest"}


@dataclass(frozen=True)
class CellRun:
    """All that is stored of one cell."""

    info: CellRecord
    folder: str
    """The cell's folder relative to the run's, with ``/``."""
    checks: tuple[CheckRecord, ...] = ()
    launch: LaunchRecord | None = None
    measurements: tuple[MeasurementRecord, ...] = ()
    """Of each workload the last one."""
    first_launches: tuple[MeasurementRecord, ...] = ()
    """What was measured before a relaunch measured it again."""
    parity: Mapping[str, Any] | None = None
    acceptance: Mapping[str, Any] | None = None
    has_log: bool = False
    """There is a ``server.log``; without a ``launch`` the run was cut while this server started."""

    @property
    def id(self) -> str:
        return self.info.id


@dataclass(frozen=True)
class Run:
    """One stored run. ``cells`` are in the matrix's order; ``problems`` says what could not be read."""

    root: Path
    info: RunInfo
    cells: tuple[CellRun, ...]
    expected: tuple[ExpectedCheck, ...] | None = None
    """The collected checks; None where collection was not recorded."""
    lost: tuple[LostCheck, ...] = ()
    finished: FinishRecord | None = None
    problems: tuple[str, ...] = ()
    is_going_on: bool = False
    """It has not ended, and its process lives."""

    @property
    def checks(self) -> tuple[CheckRecord, ...]:
        return tuple(check for cell in self.cells for check in cell.checks)

    @property
    def missing(self) -> tuple[ExpectedCheck, ...]:
        """Collected checks without an outcome, in order of collection."""
        reported = {check.test_id for check in self.checks}
        return tuple(check for check in self.expected or () if check.test_id not in reported)

    @property
    def is_cut_short(self) -> bool:
        """True if the run was killed, stopped early or lost checks; also for one that has not come to its end yet."""
        return self.finished is None or bool(self.stopped_because) or bool(self.missing) or bool(self.lost)

    @property
    def stopped_because(self) -> str:
        """Why the run stopped before its end, if it says so; pytest's exit statuses above 1 say so as well."""
        if self.finished is None:
            return ""
        return self.finished.reason or _STOPPED.get(self.finished.exit_status, "")


def load_run(root: Path) -> Run:
    """Read the run under ``root``.

    Raises :class:`UsageError` if there is none, or if a newer version of this suite wrote it.
    """
    reader = _Reader(root)
    info = reader.document("run.json", RunInfo)
    if info is None:
        what = reader.problems[0] if reader.problems else f"No run is stored in {root} (no run.json there)."
        raise UsageError(f"{what} Run `pytest -m mtp` first, or name the folder of another run.")
    checks = _worst_of_each(reader.lines("checks.jsonl", CheckRecord))
    records = {cell.id: cell for cell in info.cells}
    for check in checks.values():
        # A check of a cell that run.json does not know is shown rather than dropped.
        records.setdefault(check.cell, CellRecord(id=check.cell))
    by_cell: dict[str, list[CheckRecord]] = {cell: [] for cell in records}
    for check in checks.values():
        by_cell[check.cell].append(check)
    finished = reader.document("finished.json", FinishRecord)
    return Run(
        root=root,
        info=info,
        cells=tuple(_load_cell(reader, record, by_cell[record.id]) for record in records.values()),
        expected=reader.document("expected.json", tuple[ExpectedCheck, ...]),
        lost=reader.document("lost.json", tuple[LostCheck, ...]) or (),
        finished=finished,
        problems=tuple(reader.problems),
        is_going_on=finished is None and is_claimed(root),
    )


def _worst_of_each(records: Iterable[CheckRecord]) -> dict[str, CheckRecord]:
    """A test may report twice, e.g. a pass and then a clean-up that broke: what is worse counts, else what is later."""
    found: dict[str, CheckRecord] = {}
    for record in records:
        known = found.get(record.test_id)
        if known is None or BY_SEVERITY.index(record.state) <= BY_SEVERITY.index(known.state):
            found[record.test_id] = record
    return found


def _load_cell(reader: _Reader, info: CellRecord, checks: Iterable[CheckRecord]) -> CellRun:
    folder = f"cells/{folder_name(info.id)}"
    launch = reader.document(f"{folder}/launch.json", LaunchRecord)
    taken = reader.lines(f"{folder}/measurements.jsonl", MeasurementRecord)
    measurements = {record.workload: record for record in taken}
    first = {record.workload: record for record in taken if record.launch < measurements[record.workload].launch}
    return CellRun(
        info=info,
        folder=folder,
        checks=tuple(checks),
        launch=launch,
        measurements=tuple(sorted(measurements.values(), key=lambda record: (record.concurrency, record.workload))),
        first_launches=tuple(first.values()),
        parity=reader.document(f"{folder}/parity.json", dict[str, Any]),
        acceptance=reader.document(f"{folder}/acceptance.json", dict[str, Any]),
        has_log=(reader.root / folder / (launch.log if launch else "server.log")).is_file(),
    )


class _Reader:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.problems: list[str] = []

    def document(self, name: str, kind: type[T]) -> T | None:
        text = self._text(name)
        if text is None:
            return None
        try:
            envelope = json.loads(text)
            schema = envelope["schema"]
            if isinstance(schema, int) and schema <= SCHEMA:
                return _adapter(kind).validate_python(envelope["value"])
        except (ValueError, KeyError, TypeError) as error:
            self.problems.append(f"{name} cannot be read: {_first_line(error)}.")
            return None
        raise UsageError(
            f"{self.root / name} has schema {schema}, this suite reads up to {SCHEMA}: use the suite that wrote it."
        )

    def lines(self, name: str, kind: type[T]) -> list[T]:
        values: list[T] = []
        unreadable = 0
        adapter = _adapter(kind)
        for line in (self._text(name) or "").split("\n"):
            if line.strip():
                try:
                    values.append(adapter.validate_python(json.loads(line)))
                except ValueError:
                    unreadable += 1
        if unreadable:
            self.problems.append(f"{name}: {unreadable} line(s) half-written or unreadable, passed over.")
        return values

    def _text(self, name: str) -> str | None:
        try:
            return (self.root / name).read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems.append(f"{name} cannot be read: {error.strerror or error}.")
            return None


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    # Building one takes milliseconds, and a run has a file or more for each cell.
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
