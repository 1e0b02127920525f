"""The accepted launches of each cell and workload, with what they can show."""

from __future__ import annotations

import fnmatch
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mtpgate.errors import UsageError
from mtpgate.judge.baselines import BaselineKey, BaselineLaunch, BaselineStore
from mtpgate.judge.noise import noise_of
from mtpgate.judge.verdict import DEFAULT_ALPHA
from mtpgate.review.accept import no_such_cell


@dataclass(frozen=True)
class Accepted:
    """The accepted launches under one key. Tokens/s are output tokens."""

    key: BaselineKey
    launches: tuple[BaselineLaunch, ...]
    """Oldest first; at least one."""
    alpha: float = DEFAULT_ALPHA

    @property
    def mean(self) -> float:
        return statistics.fmean(launch.tokens_per_second for launch in self.launches)

    @property
    def spread(self) -> float | None:
        """Standard deviation between the launches, relative to the mean; None for one launch."""
        values = [launch.tokens_per_second for launch in self.launches]
        return statistics.stdev(values) / self.mean if len(values) > 1 else None

    @property
    def accept_length(self) -> float | None:
        values = [launch.accept_length for launch in self.launches if launch.accept_length is not None]
        return statistics.fmean(values) if values else None

    @property
    def findable_drop(self) -> float:
        """See :func:`findable_drop`."""
        return findable_drop(self.launches, alpha=self.alpha)


def findable_drop(launches: Sequence[BaselineLaunch], repeats: Sequence[float] = (), *, alpha: float) -> float:
    """The smallest drop, as a ratio, that rises above chance in one night with probability 0.9.

    By these launches alone; the verdict also knows the noise of the matrix's other figures, and its minimum effect.
    """
    return float(noise_of(launches, repeats, alpha=alpha).limits(alpha=alpha, minimum_effect=0.0).resolution)


def accepted(baselines: BaselineStore, patterns: Sequence[str] = ()) -> tuple[Accepted, ...]:
    """What has been accepted of the cells that match any pattern (all, without one), by matrix, cell, workload and key.

    Raises:
        UsageError: a file cannot be read, or a pattern matches no cell.
    """
    known = baselines.cells()
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(cell, pattern) for _, cell in known):
            raise UsageError(no_such_cell(pattern, sorted({cell for _, cell in known}), "has accepted launches"))
    found: list[Accepted] = []
    for matrix, cell in known:
        if patterns and not any(fnmatch.fnmatchcase(cell, pattern) for pattern in patterns):
            continue
        groups: dict[BaselineKey, list[BaselineLaunch]] = {}
        for launch in baselines.launches(matrix, cell):
            groups.setdefault(launch.key, []).append(launch)
        order = sorted(groups, key=lambda key: (_concurrency(key.workload), key.workload))
        found += [Accepted(key, tuple(groups[key])) for key in order]
    return tuple(found)


def _concurrency(workload: str) -> int:
    number = workload.split(" ", 1)[0].removeprefix("C")
    return int(number) if number.isdecimal() else 0
