"""The steady state of a pass: the time in which all C slots have a request in flight.

It begins when the last slot has sent its first request, and ends when the first slot finishes with nothing left to
send. What lies before is the ramp-up, what lies after is the tail: the server works below the concurrency that is
measured. Both are cut, and reported. The first prefill is not cut: a closed loop's cycle is a prefill and a decode, so
a window that starts after the first prefill would hold one prefill fewer than decodes and flatter the server (by
TTFT / pass, 1 % at 50 ms of 5 s). Cold starts are the warm-up's business.

Tokens at an edge. Pieces of one decode step arrive one after the other, so whether a piece lies before or behind an
edge is chance, worth up to C pieces. The tokens of a piece count as if they had come evenly over the gap before it
(as ``sglang/benchmark/stream_metrics.py`` of 0.5.23 does); those of the first piece count when it comes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from mtpgate.load.measurement import RequestRecord, SteadyState


def steady_state(records: Sequence[RequestRecord]) -> SteadyState | None:
    """The steady state of a pass; None if a request failed or the slots were never all busy at once."""
    if not records or any(record.error is not None for record in records):
        return None
    first_sent: dict[int, float] = {}
    last_finished: dict[int, float] = {}
    for record in records:
        first_sent[record.slot] = min(record.sent, first_sent.get(record.slot, record.sent))
        last_finished[record.slot] = max(record.finished, last_finished.get(record.slot, record.finished))
    started, ended = max(first_sent.values()), min(last_finished.values())
    seconds = ended - started
    if seconds <= 0:
        return None
    output = sum(tokens_by(record, ended) - tokens_by(record, started) for record in records)
    inputs = sum(
        record.input_tokens for record in records if record.arrivals and started < record.arrivals[0].time <= ended
    )
    in_flight = sum(max(0.0, min(record.finished, ended) - max(record.sent, started)) for record in records)
    return SteadyState(
        started=started,
        ended=ended,
        output_tokens=output,
        input_tokens=inputs,
        concurrency=in_flight / seconds,
        output_tokens_per_second=output / seconds,
        total_tokens_per_second=(inputs + output) / seconds,
        ramp_seconds=started - min(first_sent.values()),
        tail_seconds=max(last_finished.values()) - ended,
    )


def tokens_by(record: RequestRecord, when: float) -> float:
    """Output tokens that the answer had at ``when``, interpolated between two pieces."""
    arrivals = record.arrivals
    behind = bisect_right(arrivals, when, key=lambda arrival: arrival.time)
    if behind == 0:
        return 0.0
    before = arrivals[behind - 1]
    if behind == len(arrivals):
        return float(before.completion_tokens)
    after = arrivals[behind]
    share = (when - before.time) / (after.time - before.time)
    return before.completion_tokens + share * (after.completion_tokens - before.completion_tokens)


def within(record: RequestRecord, steady: SteadyState) -> RequestRecord:
    """The record without the pieces that came in the tail. (None come in the ramp: all slots send before any reads.)"""
    arrivals = tuple(arrival for arrival in record.arrivals if arrival.time <= steady.ended)
    return record if len(arrivals) == len(record.arrivals) else replace(record, arrivals=arrivals)
