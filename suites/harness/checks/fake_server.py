"""A server in memory that answers probes as it must; a test spoils one thing of it."""

from __future__ import annotations

import contextlib
import json
import math
import random
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mtpgate.checks.facts import Facts
from mtpgate.server.client import ServerError

EOS = 256
CONTEXT = 128
LOGPROBS = (-0.7, -1.4, -2.2, -3.0, -3.4, -3.9, -4.5, -5.0, -5.2, -6.0)
"""Of the likeliest tokens, at every place."""
Spoil = Callable[[dict[str, Any], dict[str, Any]], None]
"""Takes a request and its answer, which it may change."""


def ranked(prompt: list[int], place: int) -> list[tuple[float, int]]:
    """The likeliest tokens at a place of the answer to a prompt, whatever the answer was before."""
    first = zlib.crc32(bytes(prompt) + bytes([place])) % 90
    return [(logprob, 33 + (first + number) % 90) for number, logprob in enumerate(LOGPROBS)]


class FakeServer:
    """Byte tokens, each a function of the prompt and its place."""

    def __init__(self, spoil: Spoil = lambda request, answer: None, *, refuses: bool = True) -> None:
        self.spoil = spoil
        self.refuses = refuses
        self.time = 0.0
        self.report: list[dict[str, Any]] | None = [{}]
        self.flush_status: int | None = None
        self.aborted = False
        self.lock = threading.Lock()
        self.random = random.Random(7)
        self.hotter = 1.0
        """Factor of the temperature that it samples at."""

    def facts(self, **changes: Any) -> Facts:
        known = {"context_length": CONTEXT, "longest_input": 120, "max_running_requests": 6, "eos_id": EOS}
        return Facts(**{**known, "clock": lambda: self.time, "sleep": self.sleep, **changes})

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def ask(self, body: Mapping[str, object], timeout: float = 0) -> object:
        request: dict[str, Any] = dict(body)
        parameters = request["sampling_params"]
        if isinstance((request.get("input_ids") or [0])[0], list):
            return [self.weighed(request, tokens) for tokens in request["input_ids"]]
        self.maybe_refuse(request, parameters)
        with self.lock:
            answers = [self.answer(request) for _ in range(parameters.get("n", 1))]
        return answers if "n" in parameters else answers[0]

    def maybe_refuse(self, request: dict[str, Any], parameters: dict[str, Any]) -> None:
        bad = (
            parameters.get("temperature") == -1
            or parameters.get("max_new_tokens") == -1
            or parameters.get("top_p") == 3
            or parameters.get("json_schema", "{}")[-1] != "}"
            or not (request.get("text") or request.get("input_ids"))
            or len(request.get("input_ids", ())) > CONTEXT
            or not all(0 <= token <= EOS for token in request.get("input_ids", ()))
        )
        if bad and self.refuses:
            raise ServerError("refused", status=400)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        parameters = request["sampling_params"]
        tokens = self.tokens(request)
        reason = "length"
        stops = [] if parameters.get("ignore_eos") else parameters.get("stop_token_ids", [])
        if EOS in map(int, parameters.get("logit_bias", {})):
            tokens, reason = [EOS], "stop"
        if "json_schema" in parameters and self.refuses:
            tokens, reason = list(json.dumps(json.loads(parameters["json_schema"])["enum"][0]).encode()), "stop"
        for token in stops:
            if token in tokens:
                tokens, reason = tokens[: tokens.index(token) + 1], "stop"
        text = bytes(token % 256 for token in tokens).decode("latin-1")
        for stop in parameters.get("stop", []):
            if stop in text:
                at = text.index(stop)
                text, tokens, reason = text[:at], tokens[: at + len(stop)], "stop"
        meta: dict[str, Any] = {"finish_reason": {"type": reason}, "completion_tokens": len(tokens), "prompt_tokens": 9}
        if request.get("return_text_in_logprobs"):
            meta["output_token_logprobs"] = [[-0.5, token, bytes([token]).decode("latin-1")] for token in tokens]
        given = {"text": text, "output_ids": tokens, "meta_info": meta}
        self.spoil(request, given)
        return given

    def tokens(self, request: dict[str, Any]) -> list[int]:
        prompt = str(request.get("text") or request.get("input_ids"))
        parameters = request["sampling_params"]
        count = max(parameters.get("max_new_tokens", 1), 1)
        if "top_k" in parameters:
            factor = self.hotter * parameters["temperature"]
            weights = [math.exp(logprob / factor) for logprob in LOGPROBS[: parameters["top_k"]]]
            ranks = self.random.choices(range(len(weights)), weights, k=count)
            return [ranked(list(prompt.encode()), place)[rank][1] for place, rank in enumerate(ranks)]
        return [33 + zlib.crc32(f"{prompt} {place}".encode()) % 90 for place in range(count)]

    def weighed(self, request: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
        """A prompt and an answer, given as a prompt: what the model thinks of each token of the answer."""
        start = request["logprob_start_len"] + 1
        places = [ranked(tokens[:start], place) for place in range(len(tokens) - start)]
        told = [
            next(([logprob, known, None] for logprob, known in place if known == token), [-30.0, token, None])
            for token, place in zip(tokens[start:], places, strict=True)
        ]
        top = [[[*pair, None] for pair in place[: request["top_logprobs_num"]]] for place in places]
        meta = {"input_token_logprobs": [[None, tokens[start - 1], None], *told], "input_top_logprobs": [None, *top]}
        return {"text": "!", "output_ids": [33], "meta_info": {**meta, "completion_tokens": 1}}

    def chat(self, body: Mapping[str, object], timeout: float = 0) -> dict[str, Any]:
        request: dict[str, Any] = dict(body)
        if not request["messages"] and self.refuses:
            raise ServerError("Messages cannot be empty.", status=400)
        prompt = json.dumps(request["messages"])
        given = self.answer({"text": prompt, "sampling_params": {"max_new_tokens": request.get("max_tokens", 1)}})
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(given["output_ids"])}
        choice = {"message": {"content": given["text"]}, "finish_reason": given["meta_info"]["finish_reason"]["type"]}
        return {"choices": [choice], "usage": usage}

    @contextlib.contextmanager
    def stream(self, body: Mapping[str, object], timeout: float = 0) -> Iterator[Iterator[dict[str, Any]]]:
        yield self.events(dict(body))

    def events(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.aborted = False
        count = request["sampling_params"]["max_new_tokens"]
        for number in range(1, count + 1):
            reason = "abort" if self.aborted else "length" if number == count else None
            meta = {"finish_reason": reason and {"type": reason}, "completion_tokens": number}
            given = {"text": "x" * number, "output_ids": list(range(number)), "meta_info": meta}
            self.spoil(request, given)
            yield given
            if reason:
                return

    def abort(self, rid: str) -> None:
        self.aborted = True

    def loads(self) -> list[dict[str, Any]] | None:
        return self.report

    def flush_cache(self) -> None:
        if self.flush_status is not None:
            raise ServerError("Flush cache failed", status=self.flush_status)

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode())

    def models(self) -> dict[str, Any]:
        return {"data": [{"max_model_len": CONTEXT}]}
