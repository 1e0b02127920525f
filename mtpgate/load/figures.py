"""Figures from raw timestamps, in seconds and tokens.

With speculation one event carries several tokens, so the definitions take care of the first one:

* TTFT = first event - sent.
* TPOT = (last event with new tokens - first event) / (tokens - tokens of the first event). The usual divisor
  (tokens - 1) is too large by the tokens that came with the first event: 11 % at 8 of 64.
* ITL, a sample for each token after the first event: the gap before an event / the tokens that it brought.
* Chunk gap, a sample for each event after the first: the gap itself, which is what a reader of the stream sees.
* Tokens per chunk, a sample for each event.
* End-to-end = last byte of the answer - sent.

Percentiles are of the raw samples (linear interpolation). A tail percentile of few samples is the maximum under
another name, so it is refused: p needs 1 / (1 - p) samples, p99 therefore 100.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from mtpgate.errors import UsageError
from mtpgate.load.measurement import Distribution, RequestRecord, SteadyState
from mtpgate.load.steady import within

NAMES = ("ttft_seconds", "tpot_seconds", "itl_seconds", "chunk_gap_seconds", "tokens_per_chunk", "end_to_end_seconds")
"""The distributions of a measurement."""


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


def chunk_gap_seconds(record: RequestRecord) -> tuple[float, ...]:
    """One sample for each event after the first."""
    return tuple(after.time - before.time for before, after in pairwise(record.arrivals))


def end_to_end_seconds(record: RequestRecord) -> float:
    """From the request to the last byte of its answer."""
    return record.finished - record.sent


def output_tokens_per_second(record: RequestRecord) -> float:
    """What one request got: its output tokens / its end-to-end time."""
    return record.output_tokens / max(end_to_end_seconds(record), 1e-9)


def tokens_per_event(record: RequestRecord) -> tuple[int, ...]:
    """How many tokens each event brought, the first included."""
    counts = [0, *(arrival.completion_tokens for arrival in record.arrivals)]
    return tuple(after - before for before, after in pairwise(counts))


def percentile(samples: Sequence[float], p: float) -> float:
    """The ``p`` quantile (0 < p < 1) of the samples.

    Raises:
        UsageError: there are fewer than 1 / (1 - p) samples for a p above the median, or none at all.
    """
    needed = _samples_needed(p)
    if len(samples) < needed:
        raise UsageError(f"p{p * 100:g} needs at least {needed} samples, there are {len(samples)}")
    return quantile(sorted(samples), p)


def quantile(ordered: Sequence[float], p: float) -> float:
    """The ``p`` quantile of sorted samples, by linear interpolation as numpy's, however few they are."""
    position = p * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _samples_needed(p: float) -> int:
    return max(1, round(1 / (1 - p))) if p > 0.5 else 1


def distribution(samples: Sequence[float]) -> Distribution | None:
    """Figures of the samples, without the tail percentiles that they are too few for; None without samples."""
    if not samples:
        return None
    tails = {p: percentile(samples, p) if len(samples) >= _samples_needed(p) else None for p in (0.9, 0.95, 0.99)}
    mean = math.fsum(samples) / len(samples)
    return Distribution(len(samples), mean, percentile(samples, 0.5), tails[0.9], tails[0.95], tails[0.99])


def distributions(passes: Iterable[tuple[Sequence[RequestRecord], SteadyState]]) -> dict[str, Distribution]:
    """The figures of several passes together, by name (:data:`NAMES`).

    TTFT and end-to-end are of whole requests, the others of the pieces that came in a steady state. ITL and what is
    made of single chunks need exact counts, so they are left out where the server told only the totals.
    """
    samples: dict[str, list[float]] = {name: [] for name in NAMES}
    for records, steady in passes:
        for record in records:
            part = within(record, steady)
            samples["ttft_seconds"] += _some(ttft_seconds(record))
            samples["end_to_end_seconds"].append(end_to_end_seconds(record))
            samples["tpot_seconds"] += _some(tpot_seconds(part))
            samples["chunk_gap_seconds"] += chunk_gap_seconds(part)
            if record.counts_exact:
                samples["itl_seconds"] += itl_seconds(part)
                samples["tokens_per_chunk"] += tokens_per_event(part)
    found = {name: distribution(values) for name, values in samples.items()}
    return {name: figures for name, figures in found.items() if figures is not None}


def _some(value: float | None) -> tuple[float, ...]:
    return () if value is None else (value,)


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
