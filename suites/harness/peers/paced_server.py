"""A server whose pace is known: it streams at set times from a core of its own, and logs when it really sent.

Speaks SGLang's ``/generate`` and the OpenAI-compatible ``/v1/completions`` and ``/v1/chat/completions``, and answers
what load generators ask before they begin. Standard library only; one process, no threads. It spins for the last
millisecond before a chunk is due, which leaves within tens of microseconds of its time, and logs the time of each send
(``time.perf_counter``, which is the same clock in all processes of a machine).

    python paced_server.py --core 0            prints its address as its first line; serves until it is terminated, or
                                               until its standard input ends (its starter is gone)
    POST /pace {"ttft": 0.05, "gap": 0.005, "tokens_per_chunk": 1}     seconds; 0 and 0 is "as fast as it can"
    GET /log                                   what was sent since the last asking, one object a request
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

MODEL = "paced"
PROMPT_TOKENS_OF_TEXT = 256
"""What is said of a prompt that comes as text: nothing here can tokenize."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@dataclass
class Pace:
    ttft: float = 0.05
    gap: float = 0.005
    tokens_per_chunk: int = 1


@dataclass
class Connection:
    socket: socket.socket
    received: bytes = b""
    unsent: bytes = b""
    chunks: tuple[bytes, ...] = ()
    position: int = 0
    log: dict[str, Any] = field(default_factory=dict)


def packed(content: dict[str, Any]) -> bytes:
    event = b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


@lru_cache(maxsize=64)
def chunks_of(path: str, tokens: int, size: int, prompt: int) -> tuple[bytes, ...]:
    """The pieces of one answer; the last one ends it."""
    edges = [*range(size, tokens, size), tokens]
    make = native if path == "/generate" else openai
    pieces = [make(path, before, edge, tokens, prompt) for before, edge in zip([0, *edges], edges, strict=False)]
    pieces[-1] += (b"" if path == "/generate" else usage_event(path, tokens, prompt)) + END
    return tuple(pieces)


def native(path: str, before: int, edge: int, tokens: int, prompt: int) -> bytes:
    """Cumulative, with the keys of SGLang 0.5.23."""
    meta = {
        "id": "0" * 32,
        "finish_reason": {"type": "length", "length": tokens} if edge == tokens else None,
        "prompt_tokens": prompt,
        "weight_version": "default",
        "num_retractions": 0,
        "reasoning_tokens": 0,
        "completion_tokens": edge,
        "cached_tokens": 0,
        "cached_tokens_details": None,
        "dp_rank": None,
    }
    return packed({"text": text_of(0, edge), "output_ids": list(range(edge)), "meta_info": meta})


def openai(path: str, before: int, edge: int, tokens: int, prompt: int) -> bytes:
    text = text_of(before, edge)
    chat = "chat" in path
    choice: dict[str, Any] = {"index": 0} | ({"delta": {"content": text}} if chat else {"text": text})
    choice |= {"logprobs": None, "finish_reason": "length" if edge == tokens else None}
    return packed(base(path) | {"choices": [choice], "usage": usage(edge, prompt)})


def usage_event(path: str, tokens: int, prompt: int) -> bytes:
    return packed(base(path) | {"choices": [], "usage": usage(tokens, prompt)})


def base(path: str) -> dict[str, Any]:
    kind = "chat.completion.chunk" if "chat" in path else "text_completion"
    return {"id": "0" * 32, "object": kind, "created": 1700000000, "model": MODEL}


def usage(tokens: int, prompt: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}


def text_of(before: int, edge: int) -> str:
    return "".join(LETTERS[number % len(LETTERS)] for number in range(before, edge))


class Server:
    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.listening.setblocking(False)
        self.epoll = select.epoll()
        self.epoll.register(self.listening, select.EPOLLIN)
        # A file, or /dev/null, cannot be waited for; it never ends either.
        with contextlib.suppress(PermissionError):
            self.epoll.register(sys.stdin, select.EPOLLIN)
        self.connections: dict[int, Connection] = {}
        self.due: list[tuple[float, int, Connection]] = []
        self.fast: deque[Connection] = deque()
        self.pace = Pace()
        self.logs: list[dict[str, Any]] = []
        self.stopped = False

    def run(self) -> None:
        while not self.stopped:
            ready = self.epoll.poll(self.rest())
            # All that was there by now was received by now, whatever the reading takes.
            now = time.perf_counter()
            for number, _ in ready:
                if number == self.listening.fileno():
                    self.accept()
                elif number == sys.stdin.fileno():
                    self.stopped = not os.read(number, 4096)
                else:
                    self.read(self.connections[number], now)
            self.send_due()
            for _ in range(len(self.fast)):
                connection = self.fast.popleft()
                if self.send_next(connection, time.perf_counter()):
                    self.fast.append(connection)

    def rest(self) -> float | None:
        """Seconds to sleep: whole milliseconds, ended one early, because epoll rounds up and a core wakes up late."""
        if self.fast:
            return 0.0
        if not self.due:
            return None
        milliseconds = int(1000 * (self.due[0][0] - time.perf_counter())) - 1
        return max(0, milliseconds) / 1000

    def accept(self) -> None:
        client, _ = self.listening.accept()
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections[client.fileno()] = Connection(client)
        self.epoll.register(client, select.EPOLLIN)

    def read(self, connection: Connection, now: float) -> None:
        try:
            data = connection.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self.drop(connection)
            return
        connection.received += data
        head, found, rest = connection.received.partition(b"\r\n\r\n")
        if found:
            marker = head.lower().find(b"content-length:")
            length = int(head[marker + 15 :].split(b"\r\n")[0]) if marker >= 0 else 0
            if len(rest) >= length:
                connection.received = rest[length:]
                method_and_path = head.split(b" ", 2)
                self.answer(connection, method_and_path[1].decode().partition("?")[0], rest[:length], now)

    def drop(self, connection: Connection) -> None:
        self.epoll.unregister(connection.socket)
        del self.connections[connection.socket.fileno()]
        connection.socket.close()
        connection.chunks = ()

    def answer(self, connection: Connection, path: str, body: bytes, now: float) -> None:
        if path in ("/generate", "/v1/completions", "/v1/chat/completions"):
            self.generate(connection, path, json.loads(body), now)
            return
        answers: dict[str, Any] = {
            "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "root": MODEL}]},
            "/model_info": {"model_path": MODEL, "tokenizer_path": MODEL, "is_generation": True},
            "/server_info": {"version": "0.5.23", "internal_states": [{}], "max_total_num_tokens": 1 << 20},
        }
        answers |= {"/get_model_info": answers["/model_info"], "/get_server_info": answers["/server_info"]}
        if path == "/pace":
            self.pace = Pace(**json.loads(body))
        content: Any = answers.get(path, {})
        if path == "/log":
            content, self.logs = self.logs, []
        encoded = json.dumps(content).encode()
        connection.socket.setblocking(True)
        connection.socket.sendall(OK % (len(encoded), encoded))
        connection.socket.setblocking(False)

    def generate(self, connection: Connection, path: str, request: dict[str, Any], now: float) -> None:
        parameters = request.get("sampling_params", request)
        tokens = next(
            (
                parameters[key]
                for key in ("max_new_tokens", "max_completion_tokens", "max_tokens")
                if parameters.get(key)
            ),
            16,
        )
        asked = request.get("input_ids", request.get("prompt"))
        prompt = len(asked) if isinstance(asked, list) else PROMPT_TOKENS_OF_TEXT
        size = self.pace.tokens_per_chunk
        if not request.get("stream"):
            content = {"text": text_of(0, tokens), "usage": usage(tokens, prompt)}
            message = {"role": "assistant", "content": content["text"]}
            choice = {"index": 0, "text": content["text"], "message": message, "finish_reason": "length"}
            encoded = json.dumps(base(path) | content | {"choices": [choice]}).encode()
            connection.socket.sendall(OK % (len(encoded), encoded))
            return
        connection.chunks = chunks_of(path, tokens, size, prompt)
        connection.position = 0
        connection.log = {"key": asked[0] if isinstance(asked, list) else None, "received": now, "sends": []}
        connection.log |= {"tokens": tokens, "tokens_per_chunk": size}
        connection.unsent = STREAM
        if self.pace.ttft or self.pace.gap:
            heapq.heappush(self.due, (now + self.pace.ttft, id(connection), connection))
        else:
            self.fast.append(connection)

    def send_due(self) -> None:
        """At most one chunk, so that a request that comes in the middle of a burst is seen at once."""
        now = time.perf_counter()
        if self.due and self.due[0][0] <= now:
            when, number, connection = heapq.heappop(self.due)
            if self.send_next(connection, now):
                heapq.heappush(self.due, (when + self.pace.gap, number, connection))

    def send_next(self, connection: Connection, now: float) -> bool:
        """Send one chunk; whether there is more to send. A chunk that does not fit is finished before the next one."""
        if not connection.chunks:
            return False
        whole = connection.position == len(connection.chunks)
        data = connection.unsent if whole else connection.unsent + connection.chunks[connection.position]
        try:
            sent = connection.socket.send(data)
        except BlockingIOError:
            return True
        except ConnectionError:
            connection.chunks = ()
            return False
        connection.unsent = data[sent:]
        if not whole:
            connection.log["sends"].append(now)
            connection.position += 1
        if connection.position == len(connection.chunks) and not connection.unsent:
            connection.chunks = ()
            self.logs.append(connection.log)
            return False
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=int, help="the core to run on; default: any")
    arguments = parser.parse_args()
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    server = Server()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    print(f"http://127.0.0.1:{server.listening.getsockname()[1]}", flush=True)
    server.run()


if __name__ == "__main__":
    main()
