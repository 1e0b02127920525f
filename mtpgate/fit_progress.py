"""How far a fit is, on standard error: minutes pass between two launches of a large model."""

from __future__ import annotations

import time
from typing import TextIO

from mtpgate.gpu.leases import Waiting, describe
from mtpgate.server.fit import Change, FitAttempt, shown
from mtpgate.server.launch import Progress

SPARSE_SECONDS = 15.0
"""How often a wait is mentioned where lines cannot be rewritten."""
WIDTH = 110


class FitProgress:
    """Lines that stay, and on a terminal one that is rewritten."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._stage = ""
        self._last = 0.0
        self._open = False

    def note(self, text: str) -> None:
        self._write(f"mtpgate: {text}", stays=True)

    def leasing(self, waiting: Waiting) -> None:
        self._wait("lease", f"waiting for {describe(waiting)}, {waiting.waited_seconds:.0f} s")

    def trying(self, number: int, most: int, change: Change, known: str) -> None:
        self.note(f"launch {number} of at most {most}: {shown(change)} ({known})")

    def launching(self, progress: Progress) -> None:
        text = f"  {progress.phase} for {progress.phase_seconds:.0f} s, {progress.total_seconds:.0f} s in all"
        self._wait(progress.phase, f"{text} | {progress.last_line[:60]}")

    def tried(self, item: FitAttempt) -> None:
        self._stage = ""
        self.note(f"  {item.text}, after {item.seconds:.1f} s")

    def _wait(self, stage: str, text: str) -> None:
        now = time.monotonic()
        if not self._terminal and stage == self._stage and now - self._last < SPARSE_SECONDS:
            return
        self._stage, self._last = stage, now
        self._write(f"mtpgate: {text}", stays=not self._terminal)

    def _write(self, text: str, *, stays: bool) -> None:
        begin = "\r\x1b[K" if self._open else ""
        end = "\n" if stays else ""
        self._stream.write(begin + (text if stays else text[:WIDTH]) + end)
        self._stream.flush()
        self._open = not stays
