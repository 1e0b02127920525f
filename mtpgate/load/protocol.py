"""One slot of the load: one keep-alive connection, one request at a time, one clock reading for each read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import httptools

from mtpgate.load.exchange import Exchange, Job
from mtpgate.load.sse import UNCOUNTED, DecodingReader, ScanningReader

RECEIVE_BYTES = 256 * 1024
"""Receive buffer of a slot. One buffer is used again and again: keeping each read's result costs a memory map each."""

HTTP_OK = 200

QUOTED_BYTES = 300
"""How much of an error answer a message quotes."""


class StreamProtocol(asyncio.BufferedProtocol):
    """Sends jobs over its connection; ``finished(slot, exchange)`` is called once for each, whatever happens."""

    def __init__(
        self, number: int, finished: Callable[[StreamProtocol, Exchange], None], *, decode_every_event: bool = False
    ) -> None:
        self.number = number
        self.last_activity = 0.0
        self._finished = finished
        self._reader_type = DecodingReader if decode_every_event else ScanningReader
        self._buffer = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._transport: asyncio.Transport | None = None
        self._job: Job | None = None
        self._sent = 0.0
        self._arrivals: list[tuple[float, int]] = []
        self._tokens = 0
        self._refusal = b""

    @property
    def busy(self) -> bool:
        return self._job is not None

    @property
    def tokens_so_far(self) -> int:
        return self._tokens

    def send(self, job: Job) -> None:
        """Write the request now; a connection that the server has closed meanwhile fails the job."""
        self._job = job
        self._reader = self._reader_type(cumulative=job.wire.cumulative)
        self._parser = httptools.HttpResponseParser(self)
        self._arrivals = []
        self._tokens = 0
        self._refusal = b""
        self._sent = self.last_activity = time.perf_counter()
        if self._transport is None or self._transport.is_closing():
            self._end("the server closed the connection between two requests (no keep-alive)")
        else:
            self._transport.write(job.request)

    def fail(self, error: str) -> None:
        """End the request in flight with ``error`` and drop the connection."""
        self.close()
        self._end(error)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without the base class.
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        now = time.perf_counter()
        self.last_activity = now
        if self._job is None:
            return
        try:
            self._parser.feed_data(self._view[:nbytes])
        except (httptools.HttpParserError, ValueError) as error:
            self.fail(f"the answer is not what {self._job.wire.path} streams: {error!r}")

    def connection_lost(self, exc: Exception | None) -> None:
        how = str(exc) if exc else "closed by the server"
        self._end(f"connection cut after {self.tokens_so_far} tokens ({how})")

    def on_body(self, data: bytes) -> None:
        """A piece of the answer's body (called by the parser)."""
        if self._parser.get_status_code() != HTTP_OK:
            self._refusal += data
            return
        for count in self._reader.feed(data):
            # The last event often repeats the count of the one before it, with the final meta_info or usage.
            if count > self._tokens:
                self._tokens = count
                self._arrivals.append((self.last_activity, count))
            elif count == UNCOUNTED:
                self._arrivals.append((self.last_activity, UNCOUNTED))

    def on_message_complete(self) -> None:
        """The end of the answer (called by the parser)."""
        status = self._parser.get_status_code()
        if status == HTTP_OK:
            self._end(None)
        else:
            self._end(f"HTTP {status}: {self._refusal[:QUOTED_BYTES].decode(errors='replace')}")

    def _end(self, error: str | None) -> None:
        job = self._job
        if job is None:
            return
        self._job = None
        finished = self.last_activity if error is None else time.perf_counter()
        self._finished(
            self,
            Exchange(
                job=job,
                slot=self.number,
                sent=self._sent,
                finished=finished,
                arrivals=self._arrivals,
                reader=self._reader,
                error=error,
            ),
        )
