"""When a client was in the way of what it measured: its limits, and where they come from.

Shares are of what is measured, so they are asked for only where a model can have been measured: requests of at least
:data:`SHORTEST_REQUEST_SECONDS` with chunks at least :data:`SHORTEST_GAP_SECONDS` apart. Of a faster server the
client's own milliseconds are a large share, and mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from mtpgate.load.figures import chunk_gap_seconds, end_to_end_seconds, percentile
from mtpgate.load.measurement import Repeat

CPU_SHARE_LIMIT = 0.9
"""Above this share of one core the client can no longer be trusted to keep the load up.

The queue of a server with one worker doubles its waiting time between 80 % and 90 % load (M/M/1), and the arrival
times that this client writes down are such a queue."""

LARGEST_LOSS = 0.01
"""Load that the client itself may cost: a third of the default minimum effect (3 %), so that it alone never makes a
regression, nor hides most of one."""

LATE_LIMIT = 1.0
"""Mean lateness of a read / median gap between two chunks: from here on a chunk is read when the next one is there.

The value (tokens/s) hardly feels it (seen: 40 % late, tokens/s right within 0.1 %), but ITL and TTFT are then the
client's queue and not the server's."""

SHORTEST_REQUEST_SECONDS = 0.5
"""256 tokens at 500 tokens/s, which is beyond what one request gets of today's servers."""

SHORTEST_GAP_SECONDS = 0.001
"""A decode step of the smallest models takes longer."""


def client_objection(repeat: Repeat, *, largest_loss: float = LARGEST_LOSS) -> str | None:
    """How the client limited itself in this pass, with what to do; None if it did not.

    ``largest_loss`` is the share of the load that it may have cost; a third of the smallest effect that is judged.
    """
    client = repeat.client
    cpu_share = client.get("cpu_share") or 0.0
    if cpu_share > CPU_SHARE_LIMIT:
        return (
            f"it used {cpu_share:.0%} of a core (limit {CPU_SHARE_LIMIT:.0%}); "
            "lower the concurrency or give the client a core of its own"
        )
    if _median(map(end_to_end_seconds, repeat.records)) < SHORTEST_REQUEST_SECONDS:
        return None
    lost, stall = client.get("load_lost_share") or 0.0, client.get("stall_share") or 0.0
    if lost > largest_loss:
        what = f"its slots stood idle or unread for {lost:.1%} of their time (limit {largest_loss:.1%})"
        return f"{what}; {_whose(repeat)}"
    if stall > largest_loss:
        seconds = client.get("loop_lag_max_seconds") or 0.0
        what = f"it stood still for {seconds:.3f} s, {stall:.1%} of the pass (limit {largest_loss:.1%})"
        return f"{what}; {_whose(repeat)}"
    gap = _median(gap for record in repeat.records for gap in chunk_gap_seconds(record))
    late = client.get("late_mean_seconds") or 0.0
    if late > LATE_LIMIT * gap and gap >= SHORTEST_GAP_SECONDS:
        what = f"it read {late * 1000:.2f} ms late on average, with {gap * 1000:.2f} ms between two chunks"
        return f"{what}; {_whose(repeat)}"
    return None


def _median(samples: Iterable[float]) -> float:
    found = list(samples)
    return percentile(found, 0.5) if found else 0.0


def _whose(repeat: Repeat) -> str:
    waiting = repeat.client.get("waiting_share")
    own = "give the client a core of its own"
    return own if waiting is None else f"it waited for a core in {waiting:.1%} of the time: {own}"
