"""Launches that are proposed as baselines and wait for a review: ``FOLDER/proposed/MATRIX/CELL.jsonl``, one a line.

Lines are only added. A proposal that has been accepted is one more line of the baselines, with the reviewer's reason;
nothing is judged by a proposal.
"""

from __future__ import annotations

import datetime
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from mtpgate.errors import InfrastructureFault, UsageError
from mtpgate.judge.baselines import FILE_NAME, BaselineLaunch, BaselineStore

FOLDER_NAME = "proposed"


class Proposal(BaseModel):
    """A launch whose reason is still to be given, and what a reviewer has to know of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    launch: BaselineLaunch
    notes: tuple[str, ...] = ()

    def accepted(self, *, why: str, who: str, now: datetime.datetime) -> BaselineLaunch:
        """The launch as a baseline's."""
        origin = self.launch.origin.model_copy(update={"who": who, "accepted": now})
        return self.launch.model_copy(update={"why": why, "origin": origin})


class ProposalStore:
    """The proposals beside the baselines under ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER_NAME
        self._baselines = BaselineStore(folder)

    def add(self, proposals: Iterable[Proposal]) -> tuple[Proposal, ...]:
        """Keep those that are not there yet; returns these.

        Raises:
            UsageError: a name that is no plain file name, or a file that cannot be read.
            InfrastructureFault: the disk does not take them.
        """
        added = []
        for proposal in proposals:
            key = proposal.launch.key
            known = {other.launch.identity for other in self.all(key.matrix, key.cell)}
            if proposal.launch.identity not in known:
                self._append(self.path(key.matrix, key.cell), proposal.model_dump_json())
                added.append(proposal)
        return tuple(added)

    def waiting(self, matrix: str, cell: str) -> tuple[Proposal, ...]:
        """The proposals of a cell that have not been accepted, in the order in which they were made."""
        taken = {launch.identity for launch in self._baselines.launches(matrix, cell)}
        return tuple(proposal for proposal in self.all(matrix, cell) if proposal.launch.identity not in taken)

    def all(self, matrix: str, cell: str) -> tuple[Proposal, ...]:
        """All proposals of a cell. Raises UsageError if a line cannot be read."""
        path = self.path(matrix, cell)
        if not path.exists():
            return ()
        lines = path.read_text(encoding="utf-8").split("\n")
        return tuple(_parse(path, number, line) for number, line in enumerate(lines, start=1) if line.strip())

    def cells(self) -> tuple[tuple[str, str], ...]:
        """(matrix, cell) of all that has proposals, sorted."""
        return tuple(sorted((path.parent.name, path.stem) for path in self._folder.glob("*/*.jsonl")))

    def path(self, matrix: str, cell: str) -> Path:
        """Where a cell's proposals are kept. Raises UsageError for a name that is no plain file name."""
        for name in (matrix, cell):
            if not FILE_NAME.fullmatch(name):
                raise UsageError(f"{name!r} cannot name a file of proposals: letters, digits and ._+=@- are allowed")
        return self._folder / matrix / f"{cell}.jsonl"

    def _append(self, path: Path, line: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            with os.fdopen(descriptor, "a", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write(line + "\n")
        except OSError as error:
            raise InfrastructureFault(f"{path}: the proposal cannot be written: {error.strerror}") from error


def _parse(path: Path, number: int, line: str) -> Proposal:
    try:
        return Proposal.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the line"
        raise UsageError(
            f"{path}, line {number}: {where}: {first['msg']}; remove the line, and import again"
        ) from error
