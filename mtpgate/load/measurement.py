"""The values of a load: what was sent, when each piece came back, and the figures derived from that.

All times are seconds on the client's monotonic clock (``time.perf_counter``), all counts are tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Arrival:
    """One piece of a stream: when it was read and how many output tokens the answer had by then."""

    time: float
    completion_tokens: int


@dataclass(frozen=True)
class RequestRecord:
    """One request of a load."""

    prompt_id: str
    slot: int
    sent: float
    arrivals: tuple[Arrival, ...]
    finished: float
    input_tokens: int
    output_tokens: int
    text: str
    meta: Mapping[str, object]
    """The server's last ``meta_info`` (spec_* counts, cached_tokens, finish_reason, ...)."""
    error: str | None = None
    output_ids: tuple[int, ...] = ()
    """The answer's token ids, as the server's last event has them; empty if it does not send them."""


@dataclass(frozen=True)
class Repeat:
    """One pass over the prompts at one concurrency: raw records and the figures of the whole pass."""

    records: tuple[RequestRecord, ...]
    started: float
    ended: float
    output_tokens_per_second: float
    """All output tokens / (last finish - first send)."""
    ttft_seconds: tuple[float, ...]
    tpot_seconds: tuple[float, ...]
    accept_length: float | None
    """Completion tokens / verify steps over all requests; None without speculation."""
    client: Mapping[str, float] = field(default_factory=dict)
    """The client's own health: ``cpu_share``, ``loop_lag_max_seconds``, ``turnaround_max_seconds``, ..."""


@dataclass(frozen=True)
class Measurement:
    """One load at one concurrency: the value of the launch is the median of its repeats."""

    cell_id: str
    workload: str
    concurrency: int
    input_tokens: int
    output_tokens: int
    repeats: tuple[Repeat, ...]
    output_tokens_per_second: float
    """Median of the repeats."""
    accept_length: float | None
    ttft_p50_seconds: float
    tpot_p50_seconds: float
    void: str | None = None
    """Why the measurement does not count (errors, wrong token counts, the client limited itself), or None."""
    conditions: Mapping[str, object] = field(default_factory=dict)
