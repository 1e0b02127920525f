"""Accepted launches of each cell, as text files that are reviewed like code.

One file a cell, ``FOLDER/MATRIX/CELL.jsonl``; one line an accepted launch at one workload: its key, its figures, who
accepted it when and why, and which run measured it. Lines are added, never changed or removed by this module, so the
history of a file is the history of its baseline. A key holds all that makes two figures comparable; a launch under
another key is no baseline, and :meth:`BaselineStore.find` says which part differs.
"""

from __future__ import annotations

import datetime
import fcntl
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mtpgate.checks.acceptance import prompt_counts
from mtpgate.errors import InfrastructureFault, UsageError
from mtpgate.load.measure import VALUE
from mtpgate.load.measurement import Measurement
from mtpgate.load.spoiled import condition_figures
from mtpgate.matrix.cell import Workload

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]*")


class BaselineKey(BaseModel):
    """What must be equal for two figures to be comparable. All parts are text, as they shall be read in a review."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    matrix: str
    cell: str
    workload: str
    """See :func:`workload_key`."""
    sglang: str
    """The version, or what the version policy makes of it (``0.5.23``, ``0.5.x``)."""
    model: str
    """Name and revision, or the recipe's digest of a model that a script makes."""
    hardware: str
    """GPU or CPU model."""
    gpus: int = 0
    attention_backend: str = ""
    """As resolved by the server, not as asked."""
    engine: str = ""
    """``sglang``, or ``embedded`` for the CPU engine that this project brings."""
    driver: str = ""
    """The GPU driver's version; empty on the CPU."""

    def changed_parts(self, other: BaselineKey) -> tuple[str, ...]:
        """The names of the parts in which ``other`` differs."""
        theirs, ours = other.model_dump(), self.model_dump()
        return tuple(part for part in ours if theirs[part] != ours[part])

    def differences(self, other: BaselineKey) -> tuple[str, ...]:
        """``part: theirs -> ours`` for each part in which ``other`` (the recorded one) differs."""
        return tuple(
            f"{part}: {getattr(other, part) or 'not known'} -> {getattr(self, part) or 'not known'}"
            for part in self.changed_parts(other)
        )


class Origin(BaseModel):
    """Where an accepted launch comes from, and who took it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str = ""
    """The run that measured it: the moment it began, as its ``run.json`` has it; empty where that is not known."""
    launch: int = Field(default=1, ge=1)
    """Which launch of the cell in that run."""
    who: str = ""
    accepted: datetime.datetime | None = None
    """When it was accepted."""
    sglang_version: str = ""
    """The exact version, which the key's policy may leave out."""
    imported_from: str = ""
    """File and line of a result of another tool; empty for what this suite measured."""


class BaselineLaunch(BaseModel):
    """One accepted launch at one workload. Tokens/s are output tokens; times are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: BaselineKey
    when: datetime.datetime
    """When it was measured."""
    why: str = Field(min_length=1)
    tokens_per_second: float = Field(gt=0, allow_inf_nan=False)
    """Median of the repeats."""
    repeats: tuple[float, ...] = Field(min_length=1)
    """Tokens/s of each repeat."""
    accept_length: float | None = None
    accept_counts: Mapping[str, tuple[int, int]] | None = None
    """Tokens and verify steps by prompt, summed over the repeats; None without speculation, or if not kept."""
    ttft_p50_seconds: float | None = None
    tpot_p50_seconds: float | None = None
    conditions: Mapping[str, float] = Field(default_factory=dict)
    """Figures of the machine meanwhile: see :func:`mtpgate.load.conditions.figures`."""
    origin: Origin = Origin()

    @property
    def identity(self) -> tuple[str, int, str, str]:
        """What two lines about the same launch and workload have in common."""
        return self.origin.run, self.origin.launch, self.origin.imported_from, self.key.workload


@dataclass(frozen=True)
class Found:
    """The launches under a key; where there are none, what is nearest."""

    launches: tuple[BaselineLaunch, ...]
    """Oldest first."""
    changed: tuple[str, ...] = ()
    """Without launches: the parts in which the nearest recorded key differs; empty if nothing is recorded."""
    nearest: tuple[BaselineLaunch, ...] = ()
    """Without launches: those under the nearest recorded key, oldest first."""

    def reason(self) -> str:
        """Why there is no baseline, in words; empty if there is one."""
        if self.launches:
            return ""
        if self.changed:
            return f"the recorded launches are of another key ({'; '.join(self.changed)})"
        return "no launch of this cell and workload has been accepted"


def workload_key(workload: Workload) -> str:
    """All of a workload that changes its figures, and what the figure is: ``C16 in256 out256 requests48 steady``."""
    return f"{workload.name} in{workload.input_tokens} out{workload.output_tokens} requests{workload.requests} {VALUE}"


class BaselineStore:
    """The baseline files under one folder. Safe for several processes on one machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def record(
        self,
        key: BaselineKey,
        measurement: Measurement,
        *,
        why: str,
        when: datetime.datetime,
        origin: Origin = Origin(),  # noqa: B008 - frozen
    ) -> Path:
        """Accept a measurement, made at ``when``, as one more launch of its cell; returns the file that now holds it.

        Raises:
            UsageError: the measurement is void or has no figures, ``why`` is empty, or the file cannot be read.
            InfrastructureFault: the disk does not take it.
        """
        speed = measurement.output_tokens_per_second
        if measurement.void is not None or not speed > 0 or not math.isfinite(speed):
            raise UsageError(f"{key.cell} {key.workload} cannot become a baseline: {measurement.void or 'no figures'}")
        if not why.strip():
            raise UsageError(f"{key.cell} {key.workload}: accepting a baseline needs a reason")
        launch = BaselineLaunch(
            key=key,
            when=when,
            why=why.strip(),
            tokens_per_second=round(speed, 4),
            repeats=tuple(round(repeat.output_tokens_per_second, 4) for repeat in measurement.repeats),
            accept_length=_rounded(measurement.accept_length),
            accept_counts=prompt_counts(record for repeat in measurement.repeats for record in repeat.records) or None,
            ttft_p50_seconds=_rounded(measurement.ttft_p50_seconds),
            tpot_p50_seconds=_rounded(measurement.tpot_p50_seconds),
            conditions=condition_figures(measurement),
            origin=origin,
        )
        return self.add(launch)

    def add(self, launch: BaselineLaunch) -> Path:
        """One more accepted launch; returns the file that now holds it.

        Raises:
            UsageError: the same launch has been accepted before, or the file cannot be read.
            InfrastructureFault: the disk does not take it.
        """
        path = self.path(launch.key.matrix, launch.key.cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(path.parent):
            twin = self.twin(launch)
            if twin is not None:
                raise UsageError(f"{launch.key.cell} {launch.key.workload}: {already_accepted(twin)}")
            before = path.read_text(encoding="utf-8") if path.exists() else ""
            unfinished = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                unfinished.write_text(before + launch.model_dump_json() + "\n", encoding="utf-8")
                unfinished.replace(path)
            except OSError as error:
                unfinished.unlink(missing_ok=True)
                raise InfrastructureFault(f"{path}: the baseline cannot be written: {error.strerror}") from error
        return path

    def twin(self, launch: BaselineLaunch) -> BaselineLaunch | None:
        """The accepted launch that is this one, if its origin tells; None if there is none.

        Raises:
            UsageError: the cell's file cannot be read.
        """
        known = self.launches(launch.key.matrix, launch.key.cell)
        if not launch.origin.run and not launch.origin.imported_from:
            return None
        return next((other for other in known if other.identity == launch.identity), None)

    def cells(self) -> tuple[tuple[str, str], ...]:
        """(matrix, cell) of all that has a file, sorted."""
        found = (path for path in self.folder.glob("*/*.jsonl") if not path.name.startswith("."))
        return tuple(sorted((path.parent.name, path.stem) for path in found))

    def require_writable(self, matrix: str) -> None:
        """Find out before an hour of measuring that nothing can be recorded.

        Raises:
            UsageError: no file can be made in the matrix's folder.
        """
        folder = self.folder / matrix
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise UsageError(f"{folder}: no baselines can be written there: {error.strerror}") from error

    def find(self, key: BaselineKey) -> Found:
        """The accepted launches under ``key``.

        Raises:
            UsageError: a line of the cell's file cannot be read; the message names file, line and field.
        """
        recorded = self.launches(key.matrix, key.cell)
        same = tuple(launch for launch in recorded if launch.key == key)
        if same or not recorded:
            return Found(same)
        # The same workload under changed conditions tells more than another workload; then the newest.
        nearest = min(reversed(recorded), key=lambda launch: _distance(key, launch.key)).key
        return Found((), key.differences(nearest), tuple(launch for launch in recorded if launch.key == nearest))

    def launches(self, matrix: str, cell: str) -> tuple[BaselineLaunch, ...]:
        """All accepted launches of a cell, whatever their key, oldest first.

        Raises:
            UsageError: a line cannot be read.
        """
        path = self.path(matrix, cell)
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            return ()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: the baselines cannot be read: {error}") from error
        launches = [_parse(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
        return tuple(sorted(launches, key=lambda launch: launch.when))

    def path(self, matrix: str, cell: str) -> Path:
        """Where a cell's launches are kept.

        Raises:
            UsageError: a name that is no plain file name.
        """
        for name in (matrix, cell):
            if not FILE_NAME.fullmatch(name):
                raise UsageError(f"{name!r} cannot name a baseline file: letters, digits and ._+=@- are allowed")
        return self.folder / matrix / f"{cell}.jsonl"


def _distance(key: BaselineKey, other: BaselineKey) -> tuple[bool, bool, int]:
    """Workloads count first, and of other workloads those at the same concurrency."""
    names = [workload.split(" ", 1)[0] for workload in (key.workload, other.workload)]
    return key.workload != other.workload, names[0] != names[1], len(key.changed_parts(other))


def already_accepted(twin: BaselineLaunch) -> str:
    """That a launch is in the baselines, in words."""
    accepted = twin.origin.accepted
    by = f" by {twin.origin.who}" if twin.origin.who else ""
    day = f" on {accepted:%Y-%m-%d}" if accepted else ""
    return f"this launch has been accepted before{by}{day} ({twin.why})"


def _parse(path: Path, number: int, line: str) -> BaselineLaunch:
    try:
        return BaselineLaunch.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the line"
        raise UsageError(
            f"{path}, line {number}: {where}: {first['msg']}; restore the line from version control or remove it"
        ) from error


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 6)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder itself locked: a lock file would lie among files that are committed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
