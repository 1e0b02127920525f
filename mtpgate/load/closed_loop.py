"""The measured path: C requests in flight at all times over a streaming API, from one thread.

Method. One asyncio loop (uvloop if it is installed), one keep-alive connection for each slot, opened before the first
request; request bytes built beforehand; one clock reading for each read, before any parsing; no JSON for each chunk
(:mod:`mtpgate.load.sse`). The next request of a slot is sent from within the callback that sees the end of the last
one, so the load does not sag between requests. Garbage collection is off meanwhile.

Assumptions. The server answers HTTP/1.1 on the loopback interface without TLS, in one of :mod:`mtpgate.load.wire`'s
streams. One process does: at 100,000 events/s a core is full (``tools/bench_load.py``), and a node that decodes 64
requests at 200 tokens/s each makes 13,000. A load that needs more than this client has is void, not wrong.

A failure (cut connection, HTTP error, error event, wrong token count, silence) ends the load at once: it is in the
``error`` of its record, and the requests that were in flight beside it are recorded as stopped.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from mtpgate.errors import UsageError
from mtpgate.load.exchange import Exchange, Job, record_of
from mtpgate.load.health import ClientHealth, HealthProbe, client_health
from mtpgate.load.measurement import RequestRecord
from mtpgate.load.prompts import TokenPrompt
from mtpgate.load.protocol import StreamProtocol
from mtpgate.load.wire import WIRES, Api, Wire

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop
except ImportError:
    new_event_loop = asyncio.new_event_loop

CONNECT_SECONDS = 10.0
"""A loopback server that does not accept within this time is not serving."""

STOPPED = "stopped: another request of this load failed first"


@dataclass(frozen=True)
class LoadRun:
    """What one pass over the prompts left behind. Times are seconds of ``time.perf_counter``."""

    records: tuple[RequestRecord, ...]
    started: float
    """First send."""
    ended: float
    """Last finish."""
    health: ClientHealth


def run_load(
    base_url: str,
    prompts: Sequence[TokenPrompt],
    *,
    concurrency: int,
    output_tokens: int,
    idle_timeout_seconds: float,
    api: Api = "generate",
    decode_every_event: bool = False,
) -> LoadRun:
    """Send each prompt once, ``concurrency`` at a time, and wait for all answers.

    ``idle_timeout_seconds`` is how long a request may go without a byte; it includes the wait for the first one.
    ``decode_every_event`` decodes JSON for each event instead of scanning it (slower; for tests).

    Raises:
        UsageError: ``base_url`` is not ``http://HOST:PORT``, or there are fewer prompts than slots.
    """
    host, port = _address(base_url)
    if not 1 <= concurrency <= len(prompts):
        raise UsageError(f"concurrency must be between 1 and the number of prompts ({len(prompts)}), got {concurrency}")
    wire = WIRES[api]
    jobs = [
        Job(prompt, wire, _request_bytes(host, port, wire, prompt, output_tokens), output_tokens) for prompt in prompts
    ]
    load = _Load(jobs, concurrency, idle_timeout_seconds, decode_every_event)
    with asyncio.Runner(loop_factory=new_event_loop) as runner, _no_garbage_collection():
        return runner.run(load.run(host, port))


class _Load:
    """One pass: hands jobs to slots, collects what comes back, watches for silence."""

    def __init__(self, jobs: Iterable[Job], concurrency: int, idle_timeout: float, decode_every_event: bool) -> None:
        self._waiting = deque(jobs)
        self._concurrency = concurrency
        self._idle_timeout = idle_timeout
        self._decode_every_event = decode_every_event
        self._exchanges: list[Exchange] = []
        self._slots: list[StreamProtocol] = []
        self._in_flight = 0
        self._failed = False
        self._exception: BaseException | None = None

    async def run(self, host: str, port: int) -> LoadRun:
        loop = asyncio.get_running_loop()
        self._done = asyncio.Event()
        loop.set_exception_handler(self._broken)
        try:
            refusal = await self._connect(loop, host, port)
            if refusal is not None:
                return self._refused(refusal)
            probe = HealthProbe(loop)
            watch = loop.create_task(self._watch())
            for slot in self._slots:
                self._next(slot)
            await self._done.wait()
            own = probe.stop()
            watch.cancel()
            if self._exception is not None:
                raise self._exception
        finally:
            for slot in self._slots:
                slot.close()
        records = tuple(record_of(exchange) for exchange in self._exchanges)
        return LoadRun(
            records=records,
            started=min(record.sent for record in records),
            ended=max(record.finished for record in records),
            health=client_health(records, own),
        )

    async def _connect(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> str | None:
        """Open all connections; why that failed, or None."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                for number in range(self._concurrency):
                    slot = StreamProtocol(number, self._finished, decode_every_event=self._decode_every_event)
                    await loop.create_connection(partial(_itself, slot), host, port)
                    self._slots.append(slot)
        except (OSError, TimeoutError) as error:
            return f"connection {len(self._slots) + 1} of {self._concurrency} to {host}:{port} failed: {error!r}"
        return None

    def _refused(self, error: str) -> LoadRun:
        now = time.perf_counter()
        nothing = Exchange(self._waiting[0], len(self._slots), now, now, (), None, error)
        return LoadRun((record_of(nothing),), now, now, ClientHealth.unknown())

    def _next(self, slot: StreamProtocol) -> None:
        if self._waiting and not self._failed:
            self._in_flight += 1
            slot.send(self._waiting.popleft())
        elif self._in_flight == 0:
            self._done.set()

    def _finished(self, slot: StreamProtocol, exchange: Exchange) -> None:
        self._in_flight -= 1
        self._exchanges.append(exchange)
        if exchange.error is not None and not self._failed:
            self._failed = True
            for other in self._slots:
                other.fail(STOPPED)
        self._next(slot)

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """uvloop hands over here what a signal handler raises (a test's time-out), which must end the load."""
        exception = context.get("exception")
        if exception is None:
            loop.default_exception_handler(context)
        elif self._exception is None:
            self._exception = exception
            self._done.set()

    async def _watch(self) -> None:
        """One timer for all slots, so that the time-out costs nothing on the read path."""
        while True:
            await asyncio.sleep(min(1.0, self._idle_timeout / 4))
            now = time.perf_counter()
            for slot in self._slots:
                if slot.busy and now - slot.last_activity > self._idle_timeout:
                    slot.fail(f"no bytes for {self._idle_timeout:g} s after {slot.tokens_so_far} tokens")


def _itself(slot: StreamProtocol) -> StreamProtocol:
    return slot


def _address(base_url: str) -> tuple[str, int]:
    parts = urlsplit(base_url)
    if parts.scheme != "http" or parts.hostname is None or parts.port is None:
        raise UsageError(f"the load needs a server address of the form http://HOST:PORT, got {base_url!r}")
    return parts.hostname, parts.port


def _request_bytes(host: str, port: int, wire: Wire, prompt: TokenPrompt, output_tokens: int) -> bytes:
    body = json.dumps(wire.body(prompt.input_ids, output_tokens), separators=(",", ":")).encode()
    head = (
        f"POST {wire.path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
