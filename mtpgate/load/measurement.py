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
    counts_exact: bool = True
    """False if the server told only the total: the counts of the pieces are then even shares of it."""


@dataclass(frozen=True)
class SteadyState:
    """The part of a pass in which all slots had a request in flight; see :mod:`mtpgate.load.steady`."""

    started: float
    """When the last slot sent its first request."""
    ended: float
    """When the first slot had nothing left to send."""
    output_tokens: float
    """Tokens that came in this time; those of a piece that crosses an edge count by their share of its gap."""
    input_tokens: float
    """Input tokens of the requests whose first piece came in this time."""
    concurrency: float
    """Requests in flight, averaged over this time."""
    output_tokens_per_second: float
    total_tokens_per_second: float
    """Input and output tokens."""
    ramp_seconds: float
    """What was cut at the beginning of the pass."""
    tail_seconds: float
    """What was cut at its end, where fewer and fewer requests are in flight."""


@dataclass(frozen=True)
class Repeat:
    """One pass over the prompts at one concurrency: raw records, and the figures of its steady state."""

    records: tuple[RequestRecord, ...]
    started: float
    ended: float
    output_tokens_per_second: float
    """In the steady state; of the whole pass where it has none (a request failed)."""
    ttft_seconds: tuple[float, ...]
    """One sample for each request."""
    tpot_seconds: tuple[float, ...]
    """One sample for each request, over the part of its answer that came in the steady state."""
    accept_length: float | None
    """Completion tokens / verify steps over all requests; None without speculation."""
    client: Mapping[str, float | None] = field(default_factory=dict)
    """The client's own health: the fields of :class:`mtpgate.load.health.ClientHealth`."""
    steady: SteadyState | None = None
    pass_tokens_per_second: float | None = None
    """All output tokens / (last finish - first send): with ramp-up and tail."""


@dataclass(frozen=True)
class Distribution:
    """Figures of raw samples. A tail percentile is None where there are too few samples for it."""

    samples: int
    mean: float
    p50: float
    p90: float | None
    p95: float | None
    p99: float | None


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
    distributions: Mapping[str, Distribution] = field(default_factory=dict)
    """Over the steady states of all repeats, by name: see :data:`mtpgate.load.figures.NAMES`."""
