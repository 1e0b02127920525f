"""Splitting a server's log into records: across colours, progress bars, wrappers and ranks."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
PREFIX = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?)((?: [A-Z][A-Z_]*\d+)*)\] ?")

WRAPPER = re.compile(
    r"(?:"
    r"[\w./\[\]-]{1,60} *\| "  # docker compose and the like: a service's name and a bar
    r"|\([\w:. -]{1,60} ?pid=\d+[^)]{0,60}\) "  # Ray
    r"|\[(?:INFO|WARNING|ERROR|DEBUG|\d\d-\d\d)\b[^\]]{0,60}\] (?=[A-Z])"  # forks that log through another formatter
    r"|\[rank\d+\]: ?"  # torchrun
    r"|\[\d{4}-\d\d-\d\dT[^\]]{1,40}\] (?:\S{1,120} >> )?"  # jobs of a cluster
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S{0,16} (?:std(?:out|err) [FP] )?"  # containerd
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,60} \S{1,60}\[\d+\]: "  # journald
    r")"
)
"""What other programs write in front of a line that they pass on."""


@dataclass(frozen=True)
class LogRecord:
    """One logging record or one bare stretch of a line: when, from which rank, and its text without colours."""

    text: str
    rank: str | None = None
    """The printed prefix, e.g. ``DP0 TP3``; None for the main process, one rank only, or a line without prefix."""
    time: datetime.datetime | None = None


def records(line: str) -> Iterator[LogRecord]:
    """Split one line of a log file: at carriage returns, and where a record starts behind a progress bar."""
    plain = ANSI.sub("", line) if "\x1b" in line else line
    for piece in plain.rstrip("\r\n").split("\r"):
        start = 0
        head: re.Match[str] | None = None
        for match in PREFIX.finditer(piece):
            if match.start() > start or head is not None:
                yield _record(head, piece[start : match.start()])
            head, start = match, match.end()
        if head is not None or start < len(piece):
            yield _record(head, piece[start:])


def _record(head: re.Match[str] | None, text: str) -> LogRecord:
    if head is None:
        while (wrapper := WRAPPER.match(text)) is not None:
            text = text[wrapper.end() :]
        return LogRecord(CONTROL.sub("", text))
    try:
        time = datetime.datetime.fromisoformat(head[1].replace(",", "."))
    except ValueError:
        time = None
    return LogRecord(CONTROL.sub("", text), head[2].strip() or None, time)
