"""How much the client itself was in the way: its CPU share, the lag of its loop, its turnaround between requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mtpgate.load.measurement import RequestRecord

PROBE_SECONDS = 0.05
"""How often the loop's lag is looked at: 20 wake-ups a second cost nothing and still see a stall of a tenth of one."""

CPU_SHARE_LIMIT = 0.9
"""Above this share of one core the client can no longer be trusted to keep the load up: the measurement is void.

The queue of a server with one worker doubles its waiting time between 80 % and 90 % load (M/M/1), and the arrival
times that this client writes down are such a queue."""


@dataclass(frozen=True)
class ClientHealth:
    """The client's own figures over one pass. Times are seconds."""

    cpu_share: float
    """CPU time of the client's thread / wall time."""
    loop_lag_max_seconds: float
    """The largest delay of a timer, which is how late a read may have been seen."""
    turnaround_max_seconds: float
    """The longest pause of a slot between the end of an answer and the next request."""
    in_flight_mean: float
    """Requests in flight, averaged over the pass; below the concurrency because of the tail."""

    @classmethod
    def unknown(cls) -> ClientHealth:
        """For a pass that never began."""
        return cls(0.0, 0.0, 0.0, 0.0)


class HealthProbe:
    """Watches from its construction to :meth:`stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lag_max = 0.0
        self._cpu_started = time.thread_time()
        self._started = time.perf_counter()
        self._due = loop.time() + PROBE_SECONDS
        self._timer = loop.call_at(self._due, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        self._lag_max = max(self._lag_max, now - self._due)
        self._due = now + PROBE_SECONDS
        self._timer = self._loop.call_at(self._due, self._look)

    def stop(self) -> tuple[float, float]:
        """(CPU share, largest lag in seconds) since the construction."""
        self._timer.cancel()
        wall = time.perf_counter() - self._started
        return (time.thread_time() - self._cpu_started) / max(wall, 1e-9), self._lag_max


def client_health(records: Sequence[RequestRecord], cpu_share: float, loop_lag: float) -> ClientHealth:
    """The figures of a pass from its records and what its probe saw."""
    by_slot: dict[int, list[RequestRecord]] = {}
    for record in sorted(records, key=lambda record: record.sent):
        by_slot.setdefault(record.slot, []).append(record)
    pauses = [later.sent - earlier.finished for slot in by_slot.values() for earlier, later in pairwise(slot)]
    wall = max(record.finished for record in records) - min(record.sent for record in records)
    return ClientHealth(
        cpu_share=cpu_share,
        loop_lag_max_seconds=loop_lag,
        turnaround_max_seconds=max(pauses, default=0.0),
        in_flight_mean=sum(record.finished - record.sent for record in records) / max(wall, 1e-9),
    )
