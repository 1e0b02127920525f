"""Server-sent events of SGLang's streams, read without decoding them.

Facts this rests on (SGLang 0.5.23, ``srt/managers/tokenizer_manager.py``, ``srt/entrypoints/openai``): each event is
``data: {JSON}`` and an empty line, and tells the tokens so far as ``"completion_tokens": N`` behind the text: the
native stream in its ``meta_info``, ``/v1/completions`` in ``usage`` if ``continuous_usage_stats`` was asked for.
Decoding each event costs more than all else in a client, so :class:`ScanningReader` looks for that count from the end
of the event. A quote inside the generated text is escaped, so the pattern (which ends in an unescaped quote and a
colon) cannot be matched there.

:class:`DecodingReader` does the same with JSON throughout; the tests hold the two against each other.
"""

from __future__ import annotations

import json
import re
from typing import Protocol

SEPARATOR = b"\n\n"
PREFIX = b"data: "
DONE = b"data: [DONE]"
COUNT_KEY = b'"completion_tokens":'
CHOICE_KEY = b'"choices":[{'
"""What a piece of an OpenAI stream has and its last event, which only tells the usage, has not."""
NUMBER = re.compile(rb"\s*(\d+)")
MANY_DIGITS = 20
"""Bytes looked at behind the key: no count has more digits."""

UNCOUNTED = -1
"""Stands for an event that brings text and does not tell how many tokens there are so far."""


class EventReader(Protocol):
    """Takes the body of one response piece by piece."""

    def feed(self, data: bytes) -> list[int]:
        """The token counts of the events that ``data`` completes, in order.

        :data:`UNCOUNTED` for a piece of an OpenAI stream without a count; nothing for any other event without one.
        """

    def events(self) -> bytes:
        """What the answer is made from: the whole events so far (without ``[DONE]``), or of a cumulative stream the
        latest one, which holds them all."""


class ScanningReader:
    """The measured path: no JSON, one backward search an event."""

    __slots__ = ("_cumulative", "_kept", "_rest")

    def __init__(self, *, cumulative: bool = True) -> None:
        self._rest = b""
        self._cumulative = cumulative
        self._kept: list[bytes] = []

    def feed(self, data: bytes) -> list[int]:
        counts = []
        for event in self._events(data):
            at = event.rfind(COUNT_KEY)
            if at >= 0:
                start = at + len(COUNT_KEY)
                number = NUMBER.match(event, start, start + MANY_DIGITS)
                counts.append(int(number[1]) if number else 0)
            elif CHOICE_KEY in event:
                counts.append(UNCOUNTED)
        return counts

    def events(self) -> bytes:
        return SEPARATOR.join(self._kept)

    def _events(self, data: bytes) -> list[bytes]:
        if self._rest:
            data = self._rest + data
        # Nearly every read is one whole event, and needs no list made of it.
        elif data.find(b"\n") == len(data) - 2 and data.endswith(SEPARATOR) and not data.startswith(DONE):
            events = [data[: -len(SEPARATOR)]]
            if self._cumulative:
                self._kept = events
            else:
                self._kept += events
            return events
        if not data.endswith(SEPARATOR):
            end = data.rfind(SEPARATOR)
            if end < 0:
                self._rest = data
                return []
            self._rest = data[end + len(SEPARATOR) :]
            data = data[:end]
        else:
            self._rest = b""
            data = data[: -len(SEPARATOR)]
        events = [event for event in data.split(SEPARATOR) if event and not event.startswith(DONE)]
        if self._cumulative:
            if events:
                self._kept = events[-1:]
        else:
            self._kept += events
        return events


class DecodingReader(ScanningReader):
    """The same answers with JSON decoded for each event: slow, and the yardstick of the scanning reader."""

    __slots__ = ()

    def feed(self, data: bytes) -> list[int]:
        counts = []
        for event in self._events(data):
            decoded = decode_event(event)
            where = decoded.get("meta_info", decoded.get("usage"))
            if isinstance(where, dict) and "completion_tokens" in where:
                counts.append(int(where["completion_tokens"]))
            elif decoded.get("choices"):
                counts.append(UNCOUNTED)
        return counts


def decode_event(event: bytes) -> dict[str, object]:
    """The JSON object of one event.

    Raises:
        ValueError: the event is not ``data:`` and a JSON object.
    """
    if not event.startswith(PREFIX):
        raise ValueError(f"not an event: {event[:80]!r}")
    decoded = json.loads(event[len(PREFIX) :])
    if not isinstance(decoded, dict):
        raise ValueError(f"not a JSON object: {event[:80]!r}")
    return decoded
