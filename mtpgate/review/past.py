"""All measured launches of a cell, accepted or not."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtpgate.errors import UsageError
from mtpgate.judge import history
from mtpgate.judge.baselines import BaselineLaunch, BaselineStore
from mtpgate.judge.history import HistoryEntry
from mtpgate.review.accept import no_such_cell


@dataclass(frozen=True)
class Past:
    """One measured launch at one workload."""

    entry: HistoryEntry
    accepted: BaselineLaunch | None
    """The line of the baselines that it has become, if it has."""

    @property
    def state(self) -> str:
        """What became of it, in a word or two; the reason of a void one in its first line."""
        if self.accepted is not None:
            return "accepted"
        if self.entry.void is not None:
            return f"void: {self.entry.void.splitlines()[0]}"
        if self.entry.failed_checks:
            return f"failed {', '.join(self.entry.failed_checks)}"
        return self.entry.verdict or "not judged"


def past(folder: Path, patterns: Sequence[str] = ()) -> tuple[Past, ...]:
    """What was measured of the cells that match any pattern (all, without one), by matrix and cell, oldest first.

    ``folder`` is the baselines'. Raises UsageError if a file cannot be read, or a pattern matches no cell.
    """
    known = [(file.parent.name, file.stem) for file in sorted((folder / history.FOLDER_NAME).glob("*/*.jsonl"))]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(cell, pattern) for _, cell in known):
            raise UsageError(no_such_cell(pattern, sorted({cell for _, cell in known}), "has been measured"))
    store, found = BaselineStore(folder), []
    for matrix, cell in known:
        if patterns and not any(fnmatch.fnmatchcase(cell, pattern) for pattern in patterns):
            continue
        taken = {launch.identity: launch for launch in store.launches(matrix, cell)}
        for entry in history.read(folder, matrix, cell):
            found.append(Past(entry, taken.get((entry.run, entry.launch, "", entry.key.workload))))
    return tuple(found)
