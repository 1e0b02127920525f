"""From the bytes of a log to the few lines that matter, at the speed of a search, in constant memory.

A server that served for a week leaves gigabytes of lines about batches. One automaton over all keywords (RE2: the time
does not depend on their number, and no input makes it slow) passes over them; only the lines that it hits are decoded.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import re2

BLOCK_BYTES = 4 * 1024 * 1024
LONGEST_LINE = 20_000
"""Bytes of a line that are looked at around a hit: a line of binary, or a progress bar, may have no end."""
HEAD_LINES = 50
"""Lines at the begin that are all passed on: the first date is among them."""
TAIL_BYTES = 64 * 1024
TAIL_LINES = 5


@dataclass(frozen=True)
class Line:
    """A line, or the stretch of it between two carriage returns; ``number`` is an editor's, from 1."""

    number: int
    raw: bytes

    @property
    def text(self) -> str:
        return self.raw.decode("utf-8", "replace")

    @property
    def shape(self) -> bytes:
        """The line without its digits: equal for lines that differ only in time, rank and figures."""
        return self.raw.translate(None, b"0123456789")


class Scanner:
    """Iterates over the lines of ``stream`` that contain one of ``keywords`` (a regular expression of RE2)."""

    def __init__(self, stream: BinaryIO, keywords: str) -> None:
        self._stream = stream
        self._keywords = re2.compile(keywords.encode())
        self._newlines = 0
        self._recent = b""
        self._recent_starts_at = 0
        """Number of the line at which the kept tail starts, from 0."""

    def __iter__(self) -> Iterator[Line]:
        rest = b""
        while block := self._stream.read(BLOCK_BYTES):
            data = rest + block
            # A line that is cut here could lose its keyword: it is kept for the next block, unless it has no end.
            cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1 or (len(data) if len(data) > BLOCK_BYTES else 0)
            whole, rest = data[:cut], data[cut:]
            yield from self._lines(whole)
        yield from self._lines(rest)

    def tail(self) -> tuple[Line, ...]:
        """The last lines that are not empty, once the iteration has ended."""
        number = self._recent_starts_at
        found = []
        for piece in self._recent.split(b"\n"):
            number += 1
            if piece.strip():
                # The end of a line is its latest part.
                found.append(Line(number, piece[-LONGEST_LINE:]))
        return tuple(found[-TAIL_LINES:])

    def _lines(self, data: bytes) -> Iterator[Line]:
        at = 0
        number = self._newlines
        if number < HEAD_LINES:
            at = _after_lines(data, HEAD_LINES - number)
            for piece in data[:at].splitlines(keepends=True):
                yield Line(number + 1, piece[:LONGEST_LINE])
                number += piece.count(b"\n")
        counted = at
        while (match := self._keywords.search(data, at)) is not None:
            begin = _line_start(data, match.start(), at)
            end = _line_end(data, match.end())
            number += data.count(b"\n", counted, begin)
            counted = begin
            yield Line(number + 1, data[begin:end])
            at = max(end, match.end())
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        self._newlines += data.count(b"\n")
        kept = (self._recent + data)[-TAIL_BYTES:]
        self._recent = kept
        self._recent_starts_at = self._newlines - kept.count(b"\n")


def scan_lines(lines: Iterable[str], keywords: str) -> Scanner:
    """A scanner over text that is in memory."""
    text = "\n".join(line.rstrip("\n") for line in lines)
    return Scanner(io.BytesIO(text.encode("utf-8", "surrogatepass")), keywords)


def _after_lines(data: bytes, count: int) -> int:
    """Where the first ``count`` lines of ``data`` end."""
    at = 0
    for _ in range(count):
        found = data.find(b"\n", at)
        if found < 0:
            return len(data)
        at = found + 1
    return at


def _line_start(data: bytes, hit: int, least: int) -> int:
    least = max(least, hit - LONGEST_LINE)
    begin = max(data.rfind(b"\n", least, hit) + 1, least)
    return max(data.rfind(b"\r", begin, hit) + 1, begin)


def _line_end(data: bytes, hit: int) -> int:
    most = min(hit + LONGEST_LINE, len(data))
    end = data.find(b"\n", hit, most)
    end = most if end < 0 else end
    turn = data.find(b"\r", hit, end)
    return end if turn < 0 else turn
