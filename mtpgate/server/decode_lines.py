"""What SGLang's own lines about decoding say of a stretch of its log: eager steps, waiting and retracted requests.

A scheduler writes such a line every ``decode_log_interval`` steps (40 by default), so short loads leave few. The graph
field is ``cuda graph`` on a GPU (from 0.4.6 on) and ``cpu graph`` on the CPU; a retraction has a line of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

RUNNING = re.compile(rb"Decode batch[^\r\n]*?#running-req: (\d+)")
GRAPH = re.compile(rb"(?:cuda|cpu|npu) graph: (True|False)")
QUEUED = re.compile(rb"#queue-req: (\d+)")
RETRACTED = re.compile(rb"#retracted_reqs: (\d+)")


@dataclass(frozen=True)
class DecodeBatch:
    """One of the scheduler's lines."""

    running: int
    graph: bool | None
    """None where the version does not tell."""
    queued: int | None


@dataclass(frozen=True)
class DecodeLines:
    """All of a stretch."""

    batches: tuple[DecodeBatch, ...] = ()
    retracted: int = 0
    """Requests that lost their place in the KV pool, and had to be computed again."""


def read_decode_lines(log: Path, begin: int = 0) -> DecodeLines:
    """The lines after the first ``begin`` bytes of a log; none if there is no such file."""
    batches: list[DecodeBatch] = []
    retracted = 0
    try:
        with log.open("rb") as file:
            file.seek(begin)
            for line in file:
                if (gone := RETRACTED.search(line)) is not None:
                    retracted += int(gone[1])
                if (running := RUNNING.search(line)) is None:
                    continue
                graph, queued = GRAPH.search(line), QUEUED.search(line)
                batches.append(
                    DecodeBatch(
                        running=int(running[1]),
                        graph=None if graph is None else graph[1] == b"True",
                        queued=None if queued is None else int(queued[1]),
                    )
                )
    except FileNotFoundError:
        pass
    return DecodeLines(tuple(batches), retracted)
