"""A tiny server of SGLang's streams with known content, chunking and send times, which can misbehave."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


def whole(data: bytes) -> list[bytes]:
    return [data]


@dataclass
class Script:
    """What the server does. Events are numbered from 1 within an answer."""

    tokens_per_event: int = 1
    seconds_per_event: float = 0.0
    split: Callable[[bytes], list[bytes]] = whole
    """Cuts the bytes of one event into the pieces that are written (and drained) one after the other."""
    events_per_write: int = 1
    status: int = 200
    cut_after: int | None = None
    hang_after: int | None = None
    stop_after: int | None = None
    """Finish with fewer tokens than were asked for."""
    error_event_after: int | None = None
    abort_message: str | None = None
    garbage: bool = False
    close_after_answer: bool = False
    cached_tokens: int = 0
    incremental: bool = False
    """Send only the new token ids with each event."""
    prompt_tokens_off_by: int = 0
    continuous_usage: bool = True
    """Whether ``/v1/completions`` tells the tokens so far with each event, if asked to."""
    final_usage: bool = True
    extensions: bool = True
    """Whether it knows ``return_token_ids`` and ``return_spec_tokens_details``."""
    verify_steps: int | None = None


@dataclass
class Server:
    url: str
    script: Script
    requests: list[dict] = field(default_factory=list)
    sends: list[list[tuple[float, int]]] = field(default_factory=list)
    """For each request: (time.perf_counter before the write, completion tokens) of each event."""
    in_flight_max: int = 0
    in_flight: int = 0


def token(number: int) -> str:
    # The text contains what the client scans for, as text: it must not be taken in.
    return '"completion_tokens":99 é ' if number % 5 == 0 else f"w{number} "


class _Answering:
    def __init__(self, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server, self.reader, self.writer = server, reader, writer

    async def serve(self) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                head = await self.reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                body = json.loads(await self.reader.readexactly(length))
                body["path"] = head.split(b" ", 2)[1].decode()
                self.server.requests.append(body)
                self.server.in_flight += 1
                self.server.in_flight_max = max(self.server.in_flight_max, self.server.in_flight)
                try:
                    await self.answer(body)
                finally:
                    self.server.in_flight -= 1
                if self.server.script.close_after_answer:
                    break
        self.writer.close()

    async def answer(self, body: dict) -> None:
        script, writer = self.server.script, self.writer
        if script.garbage:
            writer.write(b"220 mail.example ESMTP\r\n")
            return
        if script.status != 200:
            text = b'{"error":{"message":"max_new_tokens is too large"}}'
            writer.write(b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%s" % (script.status, len(text), text))
            return
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n")
        native = body["path"] == "/generate"
        wanted = script.stop_after or (body["sampling_params"]["max_new_tokens"] if native else body["max_tokens"])
        sends: list[tuple[float, int]] = []
        self.server.sends.append(sends)
        tokens, number, waiting = 0, 0, b""
        while tokens < wanted:
            number += 1
            before = tokens
            tokens = min(wanted, tokens + script.tokens_per_event)
            if script.seconds_per_event:
                await asyncio.sleep(script.seconds_per_event)
            last = tokens == wanted
            waiting += self.event(body, tokens, last) if native else self.piece(body, before, tokens, last)
            if number % script.events_per_write == 0 or tokens == wanted:
                sends.append((time.perf_counter(), tokens))
                await self.write(waiting)
                waiting = b""
            if number == script.cut_after:
                writer.transport.abort()
                raise ConnectionError
            if number == script.hang_after:
                await asyncio.Event().wait()
            if number == script.error_event_after:
                await self.write(b'data: {"error":{"message":"out of memory"}}\n\n')
                break
        if not native:
            for event in self.closing(body, tokens):
                await self.write(event)
        await self.write(b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    def event(self, body: dict, tokens: int, last: bool) -> bytes:
        script = self.server.script
        meta: dict = {
            "id": "x",
            "finish_reason": None,
            "prompt_tokens": len(body["input_ids"]) + script.prompt_tokens_off_by,
        }
        meta |= {"completion_tokens": tokens, "cached_tokens": script.cached_tokens}
        if last:
            meta["finish_reason"] = {"type": "length", "length": tokens}
            if script.abort_message:
                meta["finish_reason"] = {"type": "abort", "message": script.abort_message}
            if script.verify_steps is not None:
                meta["spec_verify_ct"] = script.verify_steps
        text = "".join(token(number) for number in range(tokens))
        ids = list(range(tokens))
        content = {"text": text, "output_ids": ids[-1:] if script.incremental else ids, "meta_info": meta}
        return packed(content)

    def piece(self, body: dict, before: int, tokens: int, last: bool) -> bytes:
        """One event of ``/v1/completions``, as SGLang 0.5.23 writes it (fields, their order, nulls)."""
        script = self.server.script
        asked = body["stream_options"]["continuous_usage_stats"] and script.continuous_usage
        choice: dict = {
            "index": 0,
            "text": "".join(token(number) for number in range(before, tokens)),
            "logprobs": None,
        }
        choice |= {"finish_reason": "length" if last else None, "matched_stop": None}
        if script.extensions:
            choice["token_ids"] = list(range(before, tokens))
        content = {"id": "x", "object": "text_completion", "created": 1, "model": body["model"], "choices": [choice]}
        return packed(content | {"usage": self.usage(body, tokens) if asked else None})

    def closing(self, body: dict, tokens: int) -> list[bytes]:
        script = self.server.script
        base = {"id": "x", "object": "text_completion", "created": 1, "choices": [], "model": body["model"]}
        events = []
        if script.extensions and script.verify_steps is not None:
            details = {"spec_accept_length": tokens / script.verify_steps, "spec_verify_ct": script.verify_steps}
            events.append(packed(base | {"sglext": {"spec_tokens_details": details}}))
        if script.final_usage and body["stream_options"]["include_usage"]:
            events.append(packed(base | {"usage": self.usage(body, tokens)}))
        return events

    def usage(self, body: dict, tokens: int) -> dict:
        prompt = len(body["prompt"]) + self.server.script.prompt_tokens_off_by
        counts = {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}
        return counts | {"prompt_tokens_details": {"cached_tokens": self.server.script.cached_tokens}}

    async def write(self, data: bytes) -> None:
        for piece in self.server.script.split(data):
            self.writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await self.writer.drain()
            if len(piece) != len(data):
                await asyncio.sleep(0)


def packed(content: dict) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


@contextmanager
def stream_server(script: Script) -> Iterator[Server]:
    loop = asyncio.new_event_loop()
    server = Server("", script)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _Answering(server, reader, writer).serve()

    listening = loop.run_until_complete(asyncio.start_server(handle, "127.0.0.1", 0, limit=2**24))
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(_shut(listening), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _shut(listening: asyncio.Server) -> None:
    listening.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
