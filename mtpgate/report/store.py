"""The store of a run: files under one folder, written as things happen.

Several processes may write at once, and any may be killed at any time. So a growing file takes whole lines, appended
under a lock that the kernel drops with its holder, and a document is written beside its place and moved there. A reader
sees what was finished; at worst a line is torn, which :mod:`mtpgate.report.run` passes over.

| file | holds |
| --- | --- |
| ``run.json`` | :class:`RunInfo` |
| ``expected.json``, ``lost.json`` | the checks that were collected, and those that never got a result |
| ``checks.jsonl`` | one :class:`CheckRecord` a line |
| ``cells/<id>/launch.json``, ``server.log`` | :class:`LaunchRecord`; the launcher writes the log |
| ``cells/<id>/measurements.jsonl`` | one :class:`MeasurementRecord` a line |
| ``cells/<id>/parity.json``, ``acceptance.json``, ... | what a check wants kept, by name |
| ``finished.json`` | :class:`FinishRecord`; missing after a run that was killed |
| ``previous/`` | the run before this one |
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic_core import to_jsonable_python

from mtpgate.errors import InfrastructureFault
from mtpgate.report.records import (
    SCHEMA,
    CheckRecord,
    ExpectedCheck,
    FinishRecord,
    LaunchRecord,
    LostCheck,
    MeasurementRecord,
    RunInfo,
)

OWN_NAMES = (
    "cells",
    "checks.jsonl",
    "expected.json",
    "finished.json",
    "lost.json",
    "index.html",
    "run.json",
)
"""What is moved aside with a run. ``run.json`` comes last: while it is there, moving can be taken up again."""

_LONGEST_FOLDER_NAME = 120


def folder_name(cell: str) -> str:
    """The folder of a cell id: the id itself for ordinary ids, an escaped (and, if long, shortened) form for others."""
    name = quote(cell, safe="+=,@")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _LONGEST_FOLDER_NAME:
        name = f"{name[:_LONGEST_FOLDER_NAME]}-{hashlib.sha256(cell.encode()).hexdigest()[:12]}"
    return name or "%"


def is_claimed(root: Path) -> bool:
    """Whether a run that is going on has the folder (:meth:`Store.claim`); False where that cannot be told."""
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


class Store:
    """Writes a run under ``root``. All methods raise :class:`InfrastructureFault` when the disk does not take it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def claim(self) -> int:
        """Keep the folder for this process until the descriptor that is returned is closed, or the process ends.

        Two runs in one folder would move each other's results aside. Raises InfrastructureFault if another run has it.
        """
        with _explained(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            # The folder itself: a lock file would be one more thing that a reader has to know.
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(descriptor)
                raise InfrastructureFault(
                    f"{self.root}: another run is writing its results there; wait for its end, or name another folder"
                ) from error
        return descriptor

    def begin_run(self, info: RunInfo) -> None:
        """Move what an earlier run left to ``previous/`` and write ``run.json``.

        One process calls this, before any other writes: under xdist the controller, before its workers start.
        """
        with _explained(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            _move_aside(self.root)
        self._write(self.root / "run.json", info)

    def expect(self, checks: Iterable[ExpectedCheck]) -> None:
        """Say which checks were collected: what was not reported in the end is then known by name."""
        self._write(self.root / "expected.json", list(checks))

    def add_check(self, record: CheckRecord) -> None:
        """Append an outcome. Of two for the same test id the worse one counts, else the later."""
        self._append(self.root / "checks.jsonl", record)

    def write_lost(self, checks: Sequence[LostCheck]) -> None:
        """Say which collected checks never got a result."""
        self._write(self.root / "lost.json", list(checks))

    def finish_run(self, record: FinishRecord) -> None:
        """Say that the run came to its own end, whatever its outcome."""
        self._write(self.root / "finished.json", record)

    def add_launch(self, cell: str, record: LaunchRecord) -> None:
        """Write a cell's launch; a relaunch of the same cell replaces it."""
        self._write(self.cell_folder(cell) / "launch.json", record)

    def add_measurement(self, cell: str, record: MeasurementRecord) -> None:
        """Append a measurement. Of two for the same workload the later one counts."""
        self._append(self.cell_folder(cell) / "measurements.jsonl", record)

    def write_json(self, cell: str, name: str, value: object) -> None:
        """Keep ``value`` (dataclasses, mappings, sequences, numbers, text) as ``cells/<id>/<name>.json``."""
        self._write(self.cell_folder(cell) / f"{name.removesuffix('.json')}.json", value)

    def cell_folder(self, cell: str) -> Path:
        """The folder of a cell, made if missing."""
        folder = self.root / "cells" / folder_name(cell)
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def server_log(self, cell: str) -> Path:
        """Where the launcher writes the server's output."""
        return self.cell_folder(cell) / "server.log"

    def _write(self, path: Path, value: object) -> None:
        with _explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                with beside.open("wb") as file:
                    file.write(_encode({"schema": SCHEMA, "value": value}, indent=1))
                    file.flush()
                    os.fsync(file.fileno())
                beside.replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    beside.unlink()
                raise

    def _append(self, path: Path, record: object) -> None:
        line = _encode(record)
        with _explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                size = os.fstat(descriptor).st_size
                # A writer that was killed may have left half a line: this record must not become its other half.
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line
                written = 0
                while written < len(line):
                    written += os.write(descriptor, line[written:])
            finally:
                os.close(descriptor)


def plain(value: object) -> Any:
    """``value`` as the store holds it: dataclasses and mappings as dictionaries, numbers that are not finite as None.

    :func:`dataclasses.asdict` would refuse a read-only mapping inside, which this does not.
    """
    return _finite(to_jsonable_python(value, inf_nan_mode="constants", fallback=_fallback))


def _encode(value: object, indent: int | None = None) -> bytes:
    text = json.dumps(plain(value), ensure_ascii=False, indent=indent, allow_nan=False)
    # Log text may hold bytes that were no UTF-8; they are not worth losing a record.
    return text.encode("utf-8", "replace") + b"\n"


def _fallback(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else repr(value)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def _move_aside(root: Path) -> None:
    left = [root / name for name in OWN_NAMES if (root / name).exists()]
    incoming, previous = root / ".previous", root / "previous"
    if not left and not incoming.exists():
        return
    incoming.mkdir(exist_ok=True)
    for path in left:
        target = incoming / path.name
        if target.is_dir():
            shutil.rmtree(target)
        path.replace(target)
    if previous.exists():
        shutil.rmtree(previous)
    incoming.replace(previous)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InfrastructureFault(
            f"The run's store cannot be written: {path}: {error.strerror or error}. "
            "Free space or fix the permissions there, or choose another folder, then run again."
        ) from error
