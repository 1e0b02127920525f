"""Reading a log file while it is written: complete lines only, progress bars split at their carriage returns."""

from __future__ import annotations

import os
from pathlib import Path

CHUNK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 20
"""A longer stretch without a line end is cut: a process that writes binary must not fill the memory."""


class LogFollower:
    """Hands out the lines that were added to ``path`` since the last call.

    CR LF, LF and CR end a line. Invalid UTF-8 is replaced. A file that does not exist yet has no lines; one that became
    shorter (truncated, rotated) is read again from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        """Bytes read so far."""
        self._rest = b""

    def read(self) -> list[str]:
        """The complete lines that are new, without their ends."""
        try:
            with self.path.open("rb") as stream:
                if os.fstat(stream.fileno()).st_size < self.offset:
                    self.offset = 0
                    self._rest = b""
                stream.seek(self.offset)
                return self._split(stream.read(CHUNK_BYTES))
        except FileNotFoundError:
            return []

    def drain(self) -> list[str]:
        """All lines that are left, including a last one without an end (call when the writer is gone)."""
        lines = []
        before = -1
        while before != self.offset:
            before = self.offset
            lines += self.read()
        if self._rest:
            lines.append(_decode(self._rest))
            self._rest = b""
        return lines

    def _split(self, data: bytes) -> list[str]:
        self.offset += len(data)
        *lines, rest = (self._rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        # A progress bar writes "\rtext": the text is complete only when the next "\r" comes, and a "\r" at the very end
        # of the data may be the first half of "\r\n", which would then give one empty line more: harmless.
        if len(rest) > LONGEST_LINE_BYTES:
            lines.append(rest)
            rest = b""
        self._rest = rest
        return [_decode(line) for line in lines]


def _decode(line: bytes) -> str:
    return line.decode("utf-8", "replace")
