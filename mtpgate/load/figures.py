"""Figures from raw timestamps, in seconds and tokens.

With speculation one event carries several tokens, so the definitions take care of the first one:

* TTFT = first event - sent.
* TPOT = (last event with new tokens - first event) / (tokens - tokens of the first event). The usual divisor
  (tokens - 1) is too large by the tokens that came with the first event: 11 % at 8 of 64.
* ITL, a sample for each token after the first event: the gap before an event / the tokens that it brought.

Percentiles are of the raw samples (linear interpolation). A tail percentile of few samples is the maximum under
another name, so it is refused: p needs 1 / (1 - p) samples, p99 therefore 100.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from mtpgate.errors import UsageError
from mtpgate.load.measurement import RequestRecord


def ttft_seconds(record: RequestRecord) -> float | None:
    """Time to the first token; None for a request that got none."""
    return record.arrivals[0].time - record.sent if record.arrivals else None


def tpot_seconds(record: RequestRecord) -> float | None:
    """Mean time for each token after the first event; None if no token came after it."""
    if not record.arrivals:
        return None
    first, last = record.arrivals[0], record.arrivals[-1]
    tokens = last.completion_tokens - first.completion_tokens
    return (last.time - first.time) / tokens if tokens > 0 else None


def itl_seconds(record: RequestRecord) -> tuple[float, ...]:
    """One sample for each token after the first event."""
    samples: list[float] = []
    for before, after in pairwise(record.arrivals):
        tokens = after.completion_tokens - before.completion_tokens
        samples += [(after.time - before.time) / tokens] * tokens
    return tuple(samples)


def tokens_per_event(record: RequestRecord) -> tuple[int, ...]:
    """How many tokens each event brought, the first included."""
    counts = [0, *(arrival.completion_tokens for arrival in record.arrivals)]
    return tuple(after - before for before, after in pairwise(counts))


def percentile(samples: Sequence[float], p: float) -> float:
    """The ``p`` quantile (0 < p < 1) of the samples.

    Raises:
        UsageError: there are fewer than 1 / (1 - p) samples for a p above the median, or none at all.
    """
    needed = max(1, round(1 / (1 - p))) if p > 0.5 else 1
    if len(samples) < needed:
        raise UsageError(f"p{p * 100:g} needs at least {needed} samples, there are {len(samples)}")
    ordered = sorted(samples)
    position = p * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def accept_length(records: Iterable[RequestRecord]) -> float | None:
    """Completion tokens / verify steps over the records that name verify steps; None if none does.

    Counts are used, not the ``spec_accept_length`` of each request: short answers must not weigh as much as long ones.
    It counts the bonus token of each step, the token of the prefill and the step that was cut at the end.
    """
    tokens = steps = 0
    for record in records:
        verify = record.meta.get("spec_verify_ct")
        if isinstance(verify, int) and verify > 0:
            tokens += record.output_tokens
            steps += verify
    return tokens / steps if steps else None
