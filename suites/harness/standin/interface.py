"""The stand-in's HTTP interface: the endpoints of SGLang that the suite uses."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from answers import Model, decode, encode, steps
from loglines import log

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
        address = (standin.launch.host, standin.launch.port)
        log(
            f"ERROR:    [Errno {error.errno}] error while attempting to bind on address {address}: address already in use"
        )
        log("INFO:     Waiting for application shutdown.")
        import signal  # noqa: PLC0415 - this path alone needs it

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
        path = self.path.partition("?")[0]
        standin = self.server.standin
        old = {"/get_server_info": "/server_info", "/get_model_info": "/model_info"}
        if standin.behaviour.old_endpoints_only and path in old.values():
            return self.send(404, {"detail": "Not Found"})
        path = old.get(path, path)
        if path in ("/health", "/health_generate"):
            return self.send_text(503 if standin.behaviour.unhealthy else 200, "")
        if path == "/server_info":
            return self.send(200, server_info(standin))
        if path == "/model_info":
            return self.send(200, model_info(standin))
        if path == "/v1/models":
            model = {
                "id": standin.arguments["model_path"],
                "object": "model",
                "owned_by": "sglang",
                "max_model_len": 4096,
            }
            return self.send(200, {"object": "list", "data": [model]})
        if path == "/flush_cache":
            return self.flush_cache()
        return self.send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        if path == "/flush_cache":
            return self.flush_cache()
        try:
            request = json.loads(body)
        except ValueError:
            return self.send(400, {"error": {"message": "invalid JSON"}})
        if path in ("/tokenize", "/v1/tokenize"):
            tokens = encode(request["prompt"])
            return self.send(200, {"tokens": tokens, "count": len(tokens), "max_model_len": 4096})
        if path == "/generate":
            return self.generate(request)
        if path == "/v1/completions":
            return self.openai(request, request["prompt"], "text_completion")
        if path == "/v1/chat/completions":
            prompt = "\n".join(str(message["content"]) for message in request["messages"])
            return self.openai(request, prompt, "chat.completion")
        return self.send(404, {"detail": "Not Found"})

    def flush_cache(self) -> None:
        if self.server.flush_refusals > 0:
            self.server.flush_refusals -= 1
            return self.send_text(400, "Flush cache failed.\n")
        return self.send_text(200, "Cache flushed.\nPlease check backend logs for more details.\n")

    def generate(self, request: dict[str, Any]) -> None:
        standin = self.server.standin
        standin.count_request()
        if self.misbehaves():
            return None
        if request.get("stream"):
            return self.stream(generation(standin, request), cut=standin.behaviour.answers == "cut")
        *_, last = generation(standin, request)
        return self.send(200, last)

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


def generation(standin: StandIn, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The states of one answer: text and output_ids are cumulative, the last one carries the counts of speculation."""
    began = time.time()
    behaviour = standin.behaviour
    speculative = standin.launch.speculative
    parameters = request.get("sampling_params") or {}
    prompt = list(request["input_ids"]) if "input_ids" in request else encode(request["text"])
    count = int(parameters.get("max_new_tokens", 128))
    wrong = behaviour.answers == "wrong" or (behaviour.answers == "wrong_speculative" and speculative)
    tokens = Model(prompt)
    output: list[int] = []
    logprobs: list[list[Any]] = []
    top: list[list[list[Any]]] = []
    meta: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        "finish_reason": None,
        "prompt_tokens": len(prompt),
        "weight_version": "default",
        "num_retractions": 0,
    }
    sizes = list(steps(count, behaviour.accept_length, standin.launch.num_steps if speculative else None))
    first_token = None
    for number, size in enumerate(sizes):
        if behaviour.tokens_per_second:
            time.sleep(size / behaviour.tokens_per_second)
        for _ in range(size):
            ranked = tokens.top()
            token = ranked[1][1] if wrong and len(output) == count // 2 else ranked[0][1]
            logprobs.append([tokens.logprob(token), token, None])
            top.append([[logprob, known, None] for logprob, known in ranked])
            output.append(token)
            tokens.push(token)
        first_token = first_token or time.time() - began
        last = number == len(sizes) - 1
        state = {**meta, "completion_tokens": len(output), "cached_tokens": 0}
        if last:
            state["finish_reason"] = {"type": "length", "length": count}
            state["e2e_latency"] = time.time() - began
            state["first_token_latency"] = first_token
            state["request_received_ts"] = began
            state["request_finished_ts"] = time.time()
            if speculative:
                state |= speculation(standin, len(output), len(sizes) - 1, sizes)
        if request.get("return_logprob"):
            state |= probabilities(request, prompt, logprobs, top)
        yield {"text": decode(output), "output_ids": list(output), "meta_info": state}


def speculation(standin: StandIn, completion: int, verify: int, sizes: list[int]) -> dict[str, Any]:
    drafts = max((standin.arguments["speculative_num_draft_tokens"] or 2) - 1, 1)
    accepted = [size - 1 for size in sizes[1:]]
    histogram = [accepted.count(number) for number in range(max(accepted, default=0) + 1)]
    proposed = verify * drafts
    return {
        "spec_verify_ct": verify,
        "spec_accept_length": completion / verify if verify else 0.0,
        "spec_accept_rate": sum(accepted) / proposed if proposed else 0.0,
        "spec_num_correct_drafts": sum(accepted),
        "spec_num_proposed_drafts": proposed,
        "spec_correct_drafts_histogram": histogram,
    }


def probabilities(request: dict[str, Any], prompt: list[int], logprobs: list[Any], top: list[Any]) -> dict[str, Any]:
    start = request.get("logprob_start_len", -1)
    start = len(prompt) if start is None or start < 0 else start
    inputs: list[Any] = []
    input_top: list[Any] = []
    model = Model(prompt[:start])
    for position, token in enumerate(prompt[start:]):
        first = position == 0
        inputs.append([None if first else model.logprob(token), token, None])
        input_top.append(None if first else [[logprob, known, None] for logprob, known in model.top()])
        model.push(token)
    result: dict[str, Any] = {"input_token_logprobs": inputs, "output_token_logprobs": list(logprobs)}
    if request.get("top_logprobs_num"):
        result |= {"input_top_logprobs": input_top, "output_top_logprobs": list(top)}
    return result


def server_info(standin: StandIn) -> dict[str, Any]:
    state: dict[str, Any] = {
        "memory_usage": {"weight": 0.2, "kvcache": 0.1, "token_capacity": 65536, "graph": 0.0},
        "effective_max_running_requests_per_dp": 48,
        "last_gen_throughput": 0.0,
    }
    if standin.launch.speculative:
        state["avg_spec_accept_length"] = standin.behaviour.accept_length
    info = {**standin.arguments, "version": standin.behaviour.version, "internal_states": [state]}
    info |= {"max_total_num_tokens": 65536, "status": "ready", "max_req_input_len": 4090}
    return {**info, **standin.behaviour.server_info}


def model_info(standin: StandIn) -> dict[str, Any]:
    path = standin.arguments["model_path"]
    return {
        "model_path": path,
        "tokenizer_path": path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
    }
