"""Accepted launches of each cell, as text files that are reviewed like code.

One file a cell, ``FOLDER/MATRIX/CELL.jsonl``; one line an accepted launch at one workload: its key, its figures, when
and why it was accepted. Lines are added, never changed or removed by this module, so the history of a file is the
history of its baseline. A key holds all that makes two figures comparable; a launch under another key is no baseline,
and :meth:`BaselineStore.find` says which part differs.
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
    """``cuda``, or the embedded CPU engine's name; what else tells two engines apart (driver) belongs here too."""

    def differences(self, other: BaselineKey) -> tuple[str, ...]:
        """``part: theirs -> ours`` for each part in which ``other`` (the recorded one) differs."""
        theirs, ours = other.model_dump(), self.model_dump()
        return tuple(f"{part}: {theirs[part]} -> {ours[part]}" for part in ours if theirs[part] != ours[part])


class BaselineLaunch(BaseModel):
    """One accepted launch at one workload. Tokens/s are output tokens; times are seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: BaselineKey
    when: datetime.datetime
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


@dataclass(frozen=True)
class Found:
    """The launches under a key; where there are none, what is nearest."""

    launches: tuple[BaselineLaunch, ...]
    """Oldest first."""
    changed: tuple[str, ...] = ()
    """Without launches: the parts in which the nearest recorded key differs; empty if nothing is recorded."""

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
        self._folder = folder

    def record(self, key: BaselineKey, measurement: Measurement, *, why: str, when: datetime.datetime) -> Path:
        """Accept a measurement as one more launch of its cell; returns the file that now holds it.

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
        )
        path = self.path(key.matrix, key.cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(path.parent):
            self.launches(key.matrix, key.cell)
            before = path.read_text(encoding="utf-8") if path.exists() else ""
            unfinished = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                unfinished.write_text(before + launch.model_dump_json() + "\n", encoding="utf-8")
                unfinished.replace(path)
            except OSError as error:
                unfinished.unlink(missing_ok=True)
                raise InfrastructureFault(f"{path}: the baseline cannot be written: {error.strerror}") from error
        return path

    def require_writable(self, matrix: str) -> None:
        """Find out before an hour of measuring that nothing can be recorded.

        Raises:
            UsageError: no file can be made in the matrix's folder.
        """
        folder = self._folder / matrix
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
        nearest = min(
            reversed(recorded),
            key=lambda launch: (launch.key.workload != key.workload, len(key.differences(launch.key))),
        )
        return Found((), key.differences(nearest.key))

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
        return self._folder / matrix / f"{cell}.jsonl"


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
