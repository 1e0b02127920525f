"""Starting the paced server, and what it knows: the truth that a client's figures are held against."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

SERVER = Path(__file__).with_name("paced_server.py")

TOKENS = 256
"""Input and output of a request of the benchmarks."""


@dataclass(frozen=True)
class Truth:
    """What the server did in one load. Times are seconds, means over the requests."""

    requests: int
    tokens: int
    ttft: float
    """First send - receipt."""
    tpot: float
    """(last send - first send) / (tokens - tokens of the first chunk)."""
    itl_p50: float
    itl_p99: float
    """Of the gaps between two chunks / tokens of a chunk."""
    service: float
    """Sum of receipt to last send over all requests."""
    first_received: float
    """``time.perf_counter`` at the first receipt."""
    last_sent: float

    def lost(self, concurrency: int) -> float:
        """The share of ``concurrency`` slots' time in which the server had no request of a slot to work on."""
        return 1 - self.service / (concurrency * (self.last_sent - self.first_received))


class PacedServer:
    """A running paced server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def pace(self, *, ttft: float, gap: float, tokens_per_chunk: int = 1, prepare: Sequence[str] = ()) -> None:
        """Set the pace (seconds) and forget the log.

        ``prepare`` names paths whose answers (:data:`TOKENS` tokens to as many) are made now: that takes 10 ms, which
        the first request would wait for.
        """
        self._call("/pace", {"ttft": 0.0, "gap": 0.0, "tokens_per_chunk": tokens_per_chunk})
        for path in prepare:
            numbers = list(range(TOKENS))
            body = {"input_ids": numbers, "prompt": numbers, "max_tokens": TOKENS, "stream": True}
            self._fetch(path, body)
        self._call("/pace", {"ttft": ttft, "gap": gap, "tokens_per_chunk": tokens_per_chunk})
        self.log()

    def log(self) -> list[dict[str, Any]]:
        """The finished requests since the last asking."""
        return self._call("/log", None)

    def _call(self, path: str, body: object) -> Any:
        return json.loads(self._fetch(path, body))

    def _fetch(self, path: str, body: object) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data), timeout=60) as answer:  # noqa: S310
            return answer.read()


def truth_of(log: Sequence[dict[str, Any]]) -> Truth:
    """The figures of a log; of requests with several chunks."""
    gaps = sorted(
        (after - before) / request["tokens_per_chunk"]
        for request in log
        for before, after in zip(request["sends"], request["sends"][1:], strict=False)
    )
    return Truth(
        requests=len(log),
        tokens=sum(request["tokens"] for request in log),
        ttft=fmean(request["sends"][0] - request["received"] for request in log),
        tpot=fmean(
            (request["sends"][-1] - request["sends"][0]) / (request["tokens"] - request["tokens_per_chunk"])
            for request in log
        ),
        itl_p50=gaps[len(gaps) // 2],
        itl_p99=gaps[int(len(gaps) * 0.99)],
        service=sum(request["sends"][-1] - request["received"] for request in log),
        first_received=min(request["received"] for request in log),
        last_sent=max(request["sends"][-1] for request in log),
    )


@contextmanager
def paced_server(core: int | None = None) -> Iterator[PacedServer]:
    """A server on ``core``; it ends with this context, or with this process."""
    command = [sys.executable, str(SERVER), *([] if core is None else ["--core", str(core)])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield PacedServer(process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait(10)
