"""Server-sent events of SGLang's native ``/generate`` stream, read without decoding them.

Facts this rests on (SGLang 0.5.23, ``srt/managers/tokenizer_manager.py``): each event is ``data: {JSON}`` and an
empty line; ``text`` and ``output_ids`` are cumulative, so the last event alone holds the whole answer; ``meta_info``
comes after them with ``"completion_tokens": N``, the tokens so far. Decoding each event costs more than all else in a
client, so :class:`ScanningReader` looks for that count from the end of the event. A quote inside the generated text is
escaped, so the pattern (which ends in an unescaped quote and a colon) cannot be matched there.

:class:`DecodingReader` does the same with JSON throughout; the tests hold the two against each other.
"""

from __future__ import annotations

import json
from typing import Protocol

SEPARATOR = b"\n\n"
PREFIX = b"data: "
DONE = b"data: [DONE]"
COUNT_KEY = b'"completion_tokens":'
MANY_DIGITS = 20
"""Bytes looked at behind the key: no count has more digits."""


class EventReader(Protocol):
    """Takes the body of one response piece by piece."""

    last_event: bytes
    """The latest whole event that is not ``[DONE]``."""

    def feed(self, data: bytes) -> list[int]:
        """The token counts of the events that ``data`` completes, in order; an event without a count gives none."""


class ScanningReader:
    """The measured path: no JSON, one backward search an event."""

    __slots__ = ("_rest", "last_event")

    def __init__(self) -> None:
        self._rest = b""
        self.last_event = b""

    def feed(self, data: bytes) -> list[int]:
        counts = []
        for event in self._events(data):
            at = event.rfind(COUNT_KEY)
            if at >= 0:
                start = at + len(COUNT_KEY)
                counts.append(_leading_number(event[start : start + MANY_DIGITS]))
        return counts

    def _events(self, data: bytes) -> list[bytes]:
        if self._rest:
            data = self._rest + data
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
        if events:
            self.last_event = events[-1]
        return events


class DecodingReader(ScanningReader):
    """The same answers with JSON decoded for each event: slow, and the yardstick of the scanning reader."""

    __slots__ = ()

    def feed(self, data: bytes) -> list[int]:
        counts = []
        for event in self._events(data):
            meta = decode_event(event).get("meta_info")
            if isinstance(meta, dict) and "completion_tokens" in meta:
                counts.append(int(meta["completion_tokens"]))
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


def _leading_number(data: bytes) -> int:
    data = data.lstrip()
    end = 0
    while end < len(data) and 48 <= data[end] <= 57:
        end += 1
    return int(data[:end]) if end else 0
