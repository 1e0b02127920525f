"""The stand-in's HTTP interface: the endpoints of SGLang that the suite uses."""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from answers import decode, encode
from generation import generation
from loglines import log
from requesting import CONTEXT_LENGTH, deadly, is_batch, refusal

from reports import model_info, server_info

if TYPE_CHECKING:
    from server import StandIn


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, standin: StandIn) -> None:
        self.standin = standin
        self.flush_refusals = standin.behaviour.flush_refusals
        super().__init__((standin.launch.host, standin.launch.port), Handler)

    def handle_error(self, *_: Any) -> None:
        """A client that went away is no news."""


def start_serving(standin: StandIn) -> Server:
    try:
        return Server(standin)
    except OSError as error:
        # The real server then neither gets ready nor dies, and ignores SIGTERM.
        where = f"error while attempting to bind on address {(standin.launch.host, standin.launch.port)}"
        log(f"ERROR:    [Errno {error.errno}] {where}: address already in use")
        log("INFO:     Waiting for application shutdown.")
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """SGLang's access lines carry nothing that the suite reads."""

    def do_GET(self) -> None:
        standin = self.server.standin
        path = self.path.partition("?")[0]
        new_names = {"/server_info", "/model_info"}
        routes: dict[str, Callable[[], None]] = {
            "/health": self.health,
            "/health_generate": self.health,
            "/server_info": lambda: self.send(200, server_info(standin)),
            "/get_server_info": lambda: self.send(200, server_info(standin)),
            "/model_info": lambda: self.send(200, model_info(standin)),
            "/get_model_info": lambda: self.send(200, model_info(standin)),
            "/v1/models": lambda: self.send(200, {"object": "list", "data": [openai_model(standin)]}),
            "/flush_cache": self.flush_cache,
            "/v1/loads": lambda: self.send(200, loads(standin)),
        }
        if path in routes and not (standin.behaviour.old_endpoints_only and path in new_names):
            routes[path]()
        else:
            self.send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        routes: dict[str, Callable[[dict[str, Any]], None]] = {
            "/flush_cache": lambda _: self.flush_cache(),
            "/tokenize": self.tokenize,
            "/v1/tokenize": self.tokenize,
            "/detokenize": lambda request: self.send(200, {"text": decode(request["tokens"])}),
            "/generate": self.generate,
            "/abort_request": self.abort,
            "/v1/completions": lambda request: self.openai(request, request["prompt"], "text_completion"),
            "/v1/chat/completions": self.chat,
        }
        try:
            request = json.loads(body or b"{}")
        except ValueError:
            request = None
        if path not in routes:
            self.send(404, {"detail": "Not Found"})
        elif not isinstance(request, dict):
            self.send(400, {"object": "error", "message": "1 validation error", "type": "BadRequest", "code": 400})
        else:
            routes[path](request)

    def health(self) -> None:
        while self.server.standin.behaviour.mute:
            time.sleep(1.0)
        self.send_text(503 if self.server.standin.behaviour.unhealthy else 200, "")

    def tokenize(self, request: dict[str, Any]) -> None:
        tokens = encode(request["prompt"])
        self.send(200, {"tokens": tokens, "count": len(tokens), "max_model_len": CONTEXT_LENGTH})

    def abort(self, request: dict[str, Any]) -> None:
        self.server.standin.aborted.add(request.get("rid"))
        self.send_text(200, "")

    def chat(self, request: dict[str, Any]) -> None:
        if not request["messages"]:
            message = "Messages cannot be empty."
            error = {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400}
            return self.send(400, error)
        prompt = "\n".join(str(message["content"]) for message in request["messages"])
        return self.openai(request, prompt, "chat.completion")

    def flush_cache(self) -> None:
        if self.server.flush_refusals > 0:
            self.server.flush_refusals -= 1
            return self.send_text(400, "Flush cache failed.\n")
        return self.send_text(200, "Cache flushed.\nPlease check backend logs for more details.\n")

    def generate(self, request: dict[str, Any]) -> None:
        standin = self.server.standin
        why = None if standin.behaviour.probes == "refuses_nothing" else refusal(request)
        if why is not None:
            return self.send(400, {"error": {"message": why}})
        standin.count_request()
        kind = deadly(request)
        if kind is not None:
            standin.maybe_die_of(kind)
            return self.send(400, {"error": {"message": f"the stand-in refuses such a prompt ({kind})"}})
        if standin.behaviour.probes == "deaf" and standin.aborted:
            return self.send(503, {"error": {"message": "the stand-in was told to make no more tokens"}})
        if self.misbehaves():
            return None
        with standin.running():
            return self.answer(request)

    def answer(self, request: dict[str, Any]) -> None:
        standin = self.server.standin
        if request.get("stream"):
            return self.stream(generation(standin, request), cut=standin.behaviour.answers == "cut")
        if is_batch(request):
            # The real server runs it at once, this one prompt by prompt.
            name = "text" if "text" in request else "input_ids"
            return self.send(200, [self.last_state({**request, name: prompt}) for prompt in request[name]])
        samples = (request.get("sampling_params") or {}).get("n", 1)
        if samples > 1:
            return self.send(200, [self.last_state(request) for _ in range(samples)])
        return self.send(200, self.last_state(request))

    def last_state(self, request: dict[str, Any]) -> dict[str, Any]:
        *_, last = generation(self.server.standin, request)
        changed = {**last, **self.server.standin.behaviour.answer}
        return {name: part for name, part in changed.items() if part is not None}

    def misbehaves(self) -> bool:
        answers = self.server.standin.behaviour.answers
        if answers == "error":
            self.send(500, {"error": {"message": "the stand-in was told to answer 500"}})
        elif answers == "garbage":
            self.send_text(200, "\x00\x01 this is no JSON {")
        return answers in ("error", "garbage")

    def openai(self, request: dict[str, Any], prompt: str, kind: str) -> None:
        standin = self.server.standin
        standin.count_request()
        if self.misbehaves():
            return None
        count = request.get("max_completion_tokens") or request.get("max_tokens") or 16
        *_, answer = generation(standin, {"text": prompt, "sampling_params": {"max_new_tokens": count}})
        chat = kind == "chat.completion"
        content = {"message": {"role": "assistant", "content": answer["text"]}} if chat else {"text": answer["text"]}
        meta = answer["meta_info"]
        usage = {"prompt_tokens": meta["prompt_tokens"], "completion_tokens": meta["completion_tokens"]}
        usage["total_tokens"] = sum(usage.values())
        choice = {"index": 0, **content, "finish_reason": "length"}
        model = request.get("model", "default")
        return self.send(200, {"id": meta["id"], "object": kind, "model": model, "choices": [choice], "usage": usage})

    def stream(self, chunks: Iterator[dict[str, Any]], *, cut: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, chunk in enumerate(chunks):
            if cut and number == 2:
                self.close_connection = True
                self.connection.close()
                return
            self.event(json.dumps(chunk))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def send(self, status: int, value: object) -> None:
        self.send_bytes(status, json.dumps(value).encode(), "application/json")

    def send_text(self, status: int, text: str) -> None:
        self.send_bytes(status, text.encode(), "text/plain; charset=utf-8")

    def send_bytes(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def openai_model(standin: StandIn) -> dict[str, Any]:
    name = standin.arguments["model_path"]
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": CONTEXT_LENGTH,
    }


def loads(standin: StandIn) -> dict[str, Any]:
    """As ``/v1/loads?include=core``, without most of its figures."""
    busy = standin.in_flight + (standin.behaviour.probes == "never_idle")
    now = time.time()
    load = {
        "timestamp": now,
        "dp_rank": 0,
        "num_running_reqs": busy,
        "num_waiting_reqs": 0,
        "num_used_tokens": 32 * busy,
        "num_total_tokens": 32 * busy,
        "max_total_num_tokens": 65536,
        "max_running_requests": 48,
    }
    stamp = datetime.datetime.fromtimestamp(now, datetime.UTC).isoformat()
    return {"timestamp": stamp, "version": standin.behaviour.version, "loads": [load]}
