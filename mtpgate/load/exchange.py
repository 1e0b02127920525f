"""One request and its answer as they crossed the wire, and what becomes of them once the clock no longer matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtpgate.load.measurement import Arrival, RequestRecord
from mtpgate.load.prompts import TokenPrompt
from mtpgate.load.sse import UNCOUNTED, EventReader
from mtpgate.load.wire import Answer, Wire


@dataclass(frozen=True)
class Job:
    """One request, ready to be written."""

    prompt: TokenPrompt
    wire: Wire
    request: bytes
    output_tokens: int
    """The tokens that a right answer has, exactly."""


@dataclass(frozen=True)
class Exchange:
    """A job that has ended. Nothing is decoded yet: that would delay the next request."""

    job: Job
    slot: int
    sent: float
    finished: float
    arrivals: Sequence[tuple[float, int]]
    """(time, tokens so far) of each event that brought tokens; ``UNCOUNTED`` where it does not say how many."""
    reader: EventReader | None
    """Holds what the answer is made from; None if nothing was read."""
    error: str | None


def record_of(exchange: Exchange) -> RequestRecord:
    """The record of an exchange; an answer that is not what was asked for has an ``error`` that says how."""
    error = exchange.error
    answer = Answer()
    events = exchange.reader.events() if exchange.reader is not None else b""
    if events:
        try:
            answer = exchange.job.wire.answer(events)
        except ValueError as not_json:
            error = error or f"the answer cannot be decoded ({not_json})"
    arrivals, exact = _counted(exchange.arrivals)
    completion_tokens = arrivals[-1].completion_tokens if arrivals else 0
    return RequestRecord(
        prompt_id=exchange.job.prompt.id,
        slot=exchange.slot,
        sent=exchange.sent,
        arrivals=arrivals,
        finished=exchange.finished,
        input_tokens=len(exchange.job.prompt.input_ids),
        output_tokens=completion_tokens,
        text=answer.text,
        meta=answer.meta,
        error=error or (_objection(exchange, answer, completion_tokens) if events else "the answer was empty"),
        output_ids=answer.output_ids,
        counts_exact=exact,
    )


def _counted(arrivals: Sequence[tuple[float, int]]) -> tuple[tuple[Arrival, ...], bool]:
    """The pieces with their counts, and whether the server told each.

    A server without ``continuous_usage_stats`` tells the total behind its last piece: each piece then gets an even
    share of it. The sum is right, and the TPOT as far as the pieces are alike.
    """
    pieces = [time for time, tokens in arrivals if tokens == UNCOUNTED]
    if not pieces:
        return tuple(Arrival(time, tokens) for time, tokens in arrivals), True
    total = max(tokens for _, tokens in arrivals)
    if total == UNCOUNTED:
        return (), False
    shares = (round(total * number / len(pieces)) for number in range(1, len(pieces) + 1))
    return tuple(Arrival(time, share) for time, share in zip(pieces, shares, strict=True)), False


def _objection(exchange: Exchange, answer: Answer, counted: int) -> str | None:
    if answer.error is not None:
        return f"the server answered with an error event: {answer.error}"
    if exchange.arrivals and not counted:
        return "the stream tells no token counts: stream_options.include_usage is not honoured"
    reason = answer.meta.get("finish_reason")
    if isinstance(reason, dict) and reason.get("type") == "abort":
        return f"the server aborted the request: {reason.get('message', 'no message')}"
    return _wrong_count(exchange.job, answer.meta, counted, answer.output_ids)


def _wrong_count(job: Job, meta: Mapping[str, object], counted: int, output_ids: tuple[int, ...]) -> str | None:
    if counted != job.output_tokens:
        return f"{counted} output tokens instead of the {job.output_tokens} asked for (ignore_eos was set)"
    if output_ids and len(output_ids) != counted:
        message = f"output_ids has {len(output_ids)} tokens but completion_tokens says {counted}"
        if job.wire.cumulative:
            message += ": the stream must be cumulative (incremental_streaming_output off)"
        return message
    prompt_tokens = meta.get("prompt_tokens")
    if isinstance(prompt_tokens, int) and prompt_tokens != len(job.prompt.input_ids):
        return f"the server counted {prompt_tokens} input tokens, {len(job.prompt.input_ids)} were sent"
    return None
