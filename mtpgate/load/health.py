"""How much the client itself was in the way: its CPU share, its lateness, its turnaround between requests.

What the client writes down as an arrival is when it *read* it. Lateness has two kinds, and the larger one counts:

* Often and short: the thread waited for a core that another process had. Linux counts that as ``run_delay`` in
  ``/proc/thread-self/schedstat`` (Documentation/scheduler/sched-stats.rst); divided by the times that the thread got a
  core it is the mean delay of a wake-up.
* Rare and long: the loop stood still (a long callback, memory, the whole machine). A timer that is due every
  :data:`PROBE_SECONDS` sees it as a lag L. A read at a random moment falls into that stall with probability L / T and
  then waits L / 2, so the mean lateness is the sum of L**2 / 2T. Its steps of a millisecond (the resolution of epoll's
  time-out) vanish in the square.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from mtpgate.load.measurement import RequestRecord

PROBE_SECONDS = 0.05
"""How often the loop's lag is looked at: 20 wake-ups a second cost nothing and still see a stall of a tenth of one."""

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a core, nanoseconds of waiting for one, times it got one."""


@dataclass(frozen=True)
class ClientHealth:
    """The client's own figures over one pass. Times are seconds."""

    cpu_share: float
    """CPU time of the client's thread / wall time."""
    loop_lag_mean_seconds: float
    """The mean delay of a timer."""
    loop_lag_max_seconds: float
    """The largest delay of a timer, which is how late a read may have been seen."""
    stall_share: float
    """That delay / wall time: what it can have cost at most, if all slots waited for it."""
    late_mean_seconds: float
    """How late a read was seen on average."""
    waiting_share: float | None
    """Time in which the thread could have run and had no core / wall time; None where the kernel does not say."""
    turnaround_mean_seconds: float
    turnaround_max_seconds: float
    """The pause of a slot between the end of an answer and the next request."""
    in_flight_mean: float
    """Requests in flight, averaged over the pass; below the concurrency because of the tail."""
    load_lost_share: float
    """The share of a slot's time that the client lost: (turnaround + lateness) / (end-to-end + turnaround)."""

    @classmethod
    def unknown(cls) -> ClientHealth:
        """For a pass that never began."""
        return cls(0.0, 0.0, 0.0, 0.0, 0.0, None, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class OwnTime:
    """What a probe saw. Times are seconds."""

    cpu_share: float
    lag_mean: float
    lag_max: float
    late_by_stalls: float
    """Mean lateness of a read at a random moment because of the lags that were seen."""
    waiting_share: float | None = None
    wait_mean: float | None = None
    """Waiting for a core / wake-ups."""


class HealthProbe:
    """Watches the thread that it is made in, from then to :meth:`stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lags: list[float] = []
        self._schedstat = _schedstat()
        self._cpu_started = time.thread_time()
        self._started = time.perf_counter()
        self._arm()

    def _arm(self) -> None:
        # uvloop's loop.time() stands still within a turn of the loop, so it cannot tell the lag.
        self._due = time.perf_counter() + PROBE_SECONDS
        self._timer = self._loop.call_later(PROBE_SECONDS, self._look)

    def _look(self) -> None:
        self._lags.append(max(0.0, time.perf_counter() - self._due))
        self._arm()

    def stop(self) -> OwnTime:
        """What was seen since the construction."""
        self._timer.cancel()
        wall = max(time.perf_counter() - self._started, 1e-9)
        cpu_share = (time.thread_time() - self._cpu_started) / wall
        # The timer that is due and was not seen yet is late as well.
        lags = [*self._lags, max(0.0, time.perf_counter() - self._due)]
        before, after = self._schedstat, _schedstat()
        waiting_share = wait_mean = None
        if before is not None and after is not None:
            waited = (after[0] - before[0]) / 1e9
            waiting_share, wait_mean = waited / wall, waited / max(1, after[1] - before[1])
        return OwnTime(
            cpu_share=cpu_share,
            lag_mean=sum(lags) / len(lags),
            lag_max=max(lags),
            late_by_stalls=sum(lag * lag for lag in lags) / (2 * wall),
            waiting_share=waiting_share,
            wait_mean=wait_mean,
        )


def client_health(records: Sequence[RequestRecord], own: OwnTime) -> ClientHealth:
    """The figures of a pass from its records and what its probe saw."""
    by_slot: dict[int, list[RequestRecord]] = {}
    for record in sorted(records, key=lambda record: record.sent):
        by_slot.setdefault(record.slot, []).append(record)
    pauses = [later.sent - earlier.finished for slot in by_slot.values() for earlier, later in pairwise(slot)]
    wall = max(record.finished for record in records) - min(record.sent for record in records)
    busy = sum(record.finished - record.sent for record in records)
    late = max(own.late_by_stalls, own.wait_mean or 0.0)
    return ClientHealth(
        cpu_share=own.cpu_share,
        loop_lag_mean_seconds=own.lag_mean,
        loop_lag_max_seconds=own.lag_max,
        stall_share=own.lag_max / max(wall, own.lag_max, 1e-9),
        late_mean_seconds=late,
        waiting_share=own.waiting_share,
        turnaround_mean_seconds=sum(pauses) / len(pauses) if pauses else 0.0,
        turnaround_max_seconds=max(pauses, default=0.0),
        in_flight_mean=busy / max(wall, 1e-9),
        load_lost_share=(sum(pauses) + late * len(records)) / max(busy + sum(pauses), 1e-9),
    )


def _schedstat() -> tuple[int, int] | None:
    """(nanoseconds of waiting for a core, times that it got one) of this thread; None where there is no such file."""
    try:
        _, waited, times = SCHEDSTAT.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return int(waited), int(times)
