"""One request and its answer as they crossed the wire, and what becomes of them once the clock no longer matters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mtpgate.load.measurement import Arrival, RequestRecord
from mtpgate.load.prompts import TokenPrompt
from mtpgate.load.sse import decode_event


@dataclass(frozen=True)
class Job:
    """One request, ready to be written."""

    prompt: TokenPrompt
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
    arrivals: tuple[Arrival, ...]
    last_event: bytes
    error: str | None


def record_of(exchange: Exchange) -> RequestRecord:
    """The record of an exchange; an answer that is not what was asked for has an ``error`` that says how."""
    error = exchange.error
    answer: Mapping[str, object] = {}
    if exchange.last_event:
        try:
            answer = decode_event(exchange.last_event)
        except ValueError as not_json:
            error = error or f"the last event cannot be decoded ({not_json})"
    meta = answer.get("meta_info")
    meta = meta if isinstance(meta, dict) else {}
    ids = answer.get("output_ids")
    output_ids = tuple(ids) if isinstance(ids, list) else ()
    completion_tokens = exchange.arrivals[-1].completion_tokens if exchange.arrivals else 0
    return RequestRecord(
        prompt_id=exchange.job.prompt.id,
        slot=exchange.slot,
        sent=exchange.sent,
        arrivals=exchange.arrivals,
        finished=exchange.finished,
        input_tokens=len(exchange.job.prompt.input_ids),
        output_tokens=completion_tokens,
        text=str(answer.get("text") or ""),
        meta=meta,
        error=error or _objection(exchange.job, answer, meta, completion_tokens, output_ids),
        output_ids=output_ids,
    )


def _objection(
    job: Job, answer: Mapping[str, object], meta: Mapping[str, object], counted: int, output_ids: tuple[int, ...]
) -> str | None:
    if not answer:
        return "the answer was empty"
    if "error" in answer:
        return f"the server answered with an error event: {answer['error']}"
    reason = meta.get("finish_reason")
    if isinstance(reason, dict) and reason.get("type") == "abort":
        return f"the server aborted the request: {reason.get('message', 'no message')}"
    return _wrong_count(job, meta, counted, output_ids)


def _wrong_count(job: Job, meta: Mapping[str, object], counted: int, output_ids: tuple[int, ...]) -> str | None:
    if counted != job.output_tokens:
        return f"{counted} output tokens instead of the {job.output_tokens} asked for (ignore_eos was set)"
    if output_ids and len(output_ids) != counted:
        return (
            f"output_ids has {len(output_ids)} tokens but completion_tokens says {counted}: "
            "the stream must be cumulative (incremental_streaming_output off)"
        )
    prompt_tokens = meta.get("prompt_tokens")
    if isinstance(prompt_tokens, int) and prompt_tokens != len(job.prompt.input_ids):
        return f"the server counted {prompt_tokens} input tokens, {len(job.prompt.input_ids)} were sent"
    return None
