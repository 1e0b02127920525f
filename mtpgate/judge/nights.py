"""What a cell's history says of the nights before tonight: the series that verdict and change points look at."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mtpgate.judge.baselines import BaselineKey, BaselineLaunch
from mtpgate.judge.figures import Night
from mtpgate.judge.history import HistoryEntry
from mtpgate.judge.pool import FIRST_LAUNCHES
from mtpgate.judge.rule import NIGHTS

SPEED_COUNTS_DESPITE = frozenset({"throughput"})
"""A launch that failed these is no baseline, but its speed is what it was."""


@dataclass(frozen=True)
class Dated:
    """One run's value at one workload."""

    run: str
    when: datetime.datetime
    """Of its last launch."""
    night: Night
    sglang: str


def nights_of(entries: Iterable[HistoryEntry]) -> tuple[Dated, ...]:
    """The runs that ``entries`` of one workload come from, oldest first, without what does not count as a speed."""
    runs: dict[str, list[HistoryEntry]] = {}
    for entry in entries:
        if entry.void is None and entry.tokens_per_second and not set(entry.failed_checks) - SPEED_COUNTS_DESPITE:
            runs.setdefault(entry.run, []).append(entry)
    found = [Dated(run, max(e.when for e in same), _mean(same), same[-1].key.sglang) for run, same in runs.items()]
    return tuple(sorted(found, key=lambda dated: dated.when))


def last_nights(
    entries: Iterable[HistoryEntry], key: BaselineKey, baseline: Sequence[BaselineLaunch], *, tonight: str
) -> tuple[Night, ...]:
    """The nights under ``key`` since the first baseline was complete, oldest first, without the run ``tonight``."""
    first = baseline[:FIRST_LAUNCHES]
    if not first:
        return ()
    same = (entry for entry in entries if entry.key == key and entry.run != tonight)
    return tuple(dated.night for dated in nights_of(same) if dated.when > first[-1].when)[-(NIGHTS - 1) :]


def _mean(launches: Sequence[HistoryEntry]) -> Night:
    lengths = [launch.accept_length for launch in launches if launch.accept_length is not None]
    speeds = [launch.tokens_per_second for launch in launches if launch.tokens_per_second is not None]
    return Night(statistics.fmean(speeds), statistics.fmean(lengths) if lengths else None)
