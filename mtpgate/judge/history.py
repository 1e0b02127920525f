"""What every launch of a cell measured, accepted or not: the material for drift, change points and later baselines.

One file a cell, ``FOLDER/history/MATRIX/CELL.jsonl``, with FOLDER the baselines' own; one line a launch at one
workload, appended as it was measured. Void ones and those of launches that failed a check are kept too, and marked.
No line is ever changed: what is known only later (a check that failed after the load) is a second line of the same
launch, of which :func:`read` gives the last. The files are local to the machine that measured, unlike the baselines
beside them, which are reviewed and committed.
"""

from __future__ import annotations

import datetime
import fcntl
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mtpgate.checks.acceptance import prompt_counts
from mtpgate.errors import InfrastructureFault, UsageError
from mtpgate.judge.baselines import FILE_NAME, BaselineKey, BaselineLaunch, Origin
from mtpgate.load.measurement import Measurement
from mtpgate.load.spoiled import condition_figures

FOLDER_NAME = "history"


class HistoryEntry(BaseModel):
    """One measured launch at one workload: the fields of :class:`BaselineLaunch`, and what became of the launch.

    Tokens/s are output tokens; times are seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: BaselineKey
    when: datetime.datetime
    """When the measurement ended; with ``run``, ``launch`` and the key's workload it names the entry."""
    why: str = ""
    """Empty: only a baseline needs a reason."""
    tokens_per_second: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Median of the repeats; None only where the measurement is void."""
    repeats: tuple[float, ...] = ()
    accept_length: float | None = None
    accept_counts: Mapping[str, tuple[int, int]] | None = None
    ttft_p50_seconds: float | None = None
    tpot_p50_seconds: float | None = None
    conditions: Mapping[str, float] = Field(default_factory=dict)

    run: str = Field(min_length=1)
    """Which run of the suite: the moment it began, as its ``run.json`` has it."""
    launch: int = Field(default=1, ge=1)
    """1, or 2 for the relaunch that confirms a breach."""
    void: str | None = None
    """Why the measurement does not count, or None."""
    failed_checks: tuple[str, ...] = ()
    """Checks that the cell has failed in this run, by their markers' names."""
    verdict: str | None = None
    """What was said of it; None if it was not judged."""

    @model_validator(mode="after")
    def _figures_or_void(self) -> HistoryEntry:
        if self.void is None and (self.tokens_per_second is None or not self.repeats):
            raise ValueError("tokens_per_second and repeats may be missing only where void says why")
        return self

    @property
    def sound(self) -> bool:
        """Whether it counts as a speed, and may become a baseline."""
        return self.void is None and not self.failed_checks

    @property
    def identity(self) -> tuple[str, int, str, datetime.datetime]:
        """What two lines about the same launch and workload have in common."""
        return self.run, self.launch, self.key.workload, self.when

    @property
    def origin(self) -> Origin:
        """What a baseline that is made of it says of where it comes from; nobody has accepted it yet."""
        return Origin(run=self.run, launch=self.launch)

    def accepted(self, why: str) -> BaselineLaunch:
        """This launch as a baseline's.

        Raises:
            UsageError: it is void or failed a check, or ``why`` is empty.
        """
        name = f"{self.key.cell} {self.key.workload} of {self.run}"
        if not self.sound:
            reason = self.void or f"the launch failed {', '.join(self.failed_checks)}"
            raise UsageError(f"{name} cannot become a baseline: {reason}")
        if not why.strip():
            raise UsageError(f"{name}: accepting a baseline needs a reason")
        shared = {name: getattr(self, name) for name in BaselineLaunch.model_fields}
        return BaselineLaunch(**shared | {"why": why.strip()})


def entry(
    key: BaselineKey,
    measurement: Measurement,
    *,
    run: str,
    when: datetime.datetime,
    launch: int = 1,
    failed_checks: tuple[str, ...] = (),
    verdict: str | None = None,
) -> HistoryEntry:
    """What a measurement comes to; one without figures is void."""
    speed = _rounded(measurement.output_tokens_per_second)
    void = measurement.void
    if speed is None or speed <= 0:
        speed, void = None, void or "no repeat was measured"
    return HistoryEntry(
        key=key,
        when=when,
        tokens_per_second=speed,
        repeats=tuple(round(repeat.output_tokens_per_second, 4) for repeat in measurement.repeats),
        accept_length=_rounded(measurement.accept_length),
        accept_counts=prompt_counts(record for repeat in measurement.repeats for record in repeat.records) or None,
        ttft_p50_seconds=_rounded(measurement.ttft_p50_seconds),
        tpot_p50_seconds=_rounded(measurement.tpot_p50_seconds),
        conditions=condition_figures(measurement),
        run=run,
        launch=launch,
        void=void,
        failed_checks=failed_checks,
        verdict=verdict,
    )


def append(folder: Path, matrix: str, cell: str, entry: HistoryEntry) -> Path:
    """Add one line to the cell's history under the baselines' ``folder``; returns the file. Safe for several processes.

    Raises:
        UsageError: a name that is no plain file name.
        InfrastructureFault: the disk does not take it; the file is then as it was.
    """
    file = path(folder, matrix, cell)
    line = entry.model_dump_json().encode() + b"\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            if os.write(descriptor, line) < len(line):
                os.ftruncate(descriptor, size)
                raise InfrastructureFault(f"{file}: the history cannot be written: the disk is full")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InfrastructureFault(f"{file}: the history cannot be written: {error.strerror}") from error
    return file


def ended(measurement: Measurement) -> datetime.datetime:
    """When a measurement ended, as it says itself (a baseline made of it has the same moment); else now."""
    told = measurement.conditions.get("ended")
    return datetime.datetime.fromisoformat(told) if isinstance(told, str) else datetime.datetime.now().astimezone()


def require_writable(folder: Path, matrix: str) -> None:
    """Find out before an hour of measuring that nothing can be kept.

    Raises:
        UsageError: no file can be made in the matrix's folder.
    """
    place = folder / FOLDER_NAME / matrix
    try:
        place.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise UsageError(f"{place}: no history can be written there: {error.strerror}; see --baselines") from error


def read(folder: Path, matrix: str, cell: str) -> tuple[HistoryEntry, ...]:
    """All measured launches of a cell, whatever their key, oldest first; of two lines of one launch the later.

    Raises:
        UsageError: a line cannot be read; the message names file, line and field.
    """
    file = path(folder, matrix, cell)
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: the history cannot be read: {error}") from error
    found: dict[object, HistoryEntry] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            parsed = _parse(file, number, line)
            found[parsed.identity] = parsed
    return tuple(sorted(found.values(), key=lambda item: item.when))


def path(folder: Path, matrix: str, cell: str) -> Path:
    """Where a cell's history is kept.

    Raises:
        UsageError: a name that is no plain file name.
    """
    for name in (matrix, cell):
        if not FILE_NAME.fullmatch(name):
            raise UsageError(f"{name!r} cannot name a history file: letters, digits and ._+=@- are allowed")
    return folder / FOLDER_NAME / matrix / f"{cell}.jsonl"


def _parse(file: Path, number: int, line: str) -> HistoryEntry:
    try:
        return HistoryEntry.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the line"
        raise UsageError(
            f"{file}, line {number}: {where}: {first['msg']}; remove the line, or move the file away: it is advice only"
        ) from error


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 6)
