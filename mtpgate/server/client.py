"""Asking one server: health, configuration, cache, tokens, single answers. Loads have a client of their own."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import requests

CONNECT_SECONDS = 5.0
CONTROL_SECONDS = 30.0
HEALTH_SECONDS = 25.0
"""0.5.23 itself waits up to 20 s for its scheduler before it answers 503."""
GENERATE_SECONDS = 600.0
EXCERPT_CHARACTERS = 240


class ServerError(Exception):
    """The server did not answer, answered with an error, or with something else than was expected.

    The text says what was asked of which address and what came back. ``status`` is the HTTP status, None without one.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ServerClient:
    """A control client for the server at ``base_url``. Every call has a time-out and raises :class:`ServerError`."""

    def __init__(self, base_url: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.base_url = base_url.rstrip("/")
        self._sleep = sleep
        self._session = requests.Session()
        self._session.trust_env = False  # A proxy from the environment has no business on a loopback address.

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()

    def health(self, timeout: float = HEALTH_SECONDS) -> bool:
        """Whether ``/health`` answers 200 (0.5.23 lets the scheduler make one token for it)."""
        return self._answers("/health", timeout)

    def health_generate(self, timeout: float = HEALTH_SECONDS) -> bool:
        """Whether ``/health_generate`` answers 200: the scheduler made one token."""
        return self._answers("/health_generate", timeout)

    def server_info(self, timeout: float = CONTROL_SECONDS) -> dict[str, Any]:
        """All resolved arguments, ``version`` and ``internal_states``; falls back to the older ``/get_server_info``."""
        return self._first_of(("/server_info", "/get_server_info"), timeout)

    def model_info(self, timeout: float = CONTROL_SECONDS) -> dict[str, Any]:
        """``model_path``, ``is_generation``, ...; falls back to the older ``/get_model_info``."""
        return self._first_of(("/model_info", "/get_model_info"), timeout)

    def flush_cache(self, attempts: int = 20, pause_seconds: float = 0.25) -> None:
        """Empty the radix cache; a 400 right after an answer means "requests pending" and is tried again."""
        for attempt in range(attempts):
            try:
                self._call("POST", "/flush_cache", CONTROL_SECONDS)
                return
            except ServerError as error:
                if error.status != 400 or attempt == attempts - 1:
                    raise
            self._sleep(pause_seconds)

    def complete(self, body: Mapping[str, object], timeout: float = GENERATE_SECONDS) -> dict[str, Any]:
        """The decoded answer of ``/v1/completions`` (not streamed)."""
        where = "/v1/completions"
        return self._json(self._call("POST", where, timeout, body), f"POST {where}")

    def tokenize(self, text: str, *, add_special_tokens: bool = True, timeout: float = CONTROL_SECONDS) -> list[int]:
        """Token ids of ``text`` by the server's own tokenizer."""
        body = {"prompt": text, "add_special_tokens": add_special_tokens}
        answer = self._json(self._call("POST", "/tokenize", timeout, body), "POST /tokenize")
        tokens = answer.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise ServerError(f"POST {self.base_url}/tokenize: no list of token ids in {_excerpt(str(answer))}")
        return tokens

    def detokenize(self, tokens: Sequence[int], timeout: float = CONTROL_SECONDS) -> str:
        """The text of ``tokens`` by the server's own tokenizer, special tokens spelled out."""
        if not tokens:
            return ""
        body = {"tokens": list(tokens), "skip_special_tokens": False}
        answer = self._json(self._call("POST", "/detokenize", timeout, body), "POST /detokenize")
        text = answer.get("text")
        if not isinstance(text, str):
            raise ServerError(f"POST {self.base_url}/detokenize: no text in {_excerpt(str(answer))}")
        return text

    def generate(
        self,
        *,
        text: str | None = None,
        input_ids: Sequence[int] | None = None,
        sampling_params: Mapping[str, Any] | None = None,
        return_logprob: bool = False,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
        timeout: float = GENERATE_SECONDS,
        **more: Any,
    ) -> dict[str, Any]:
        """One answer of ``/generate``: ``text``, ``output_ids``, ``meta_info``. Exactly one of ``text``, ``input_ids``.

        An empty text is refused here: it takes SGLang's scheduler down (seen in 0.5.23).
        """
        if (text is None) == (input_ids is None):
            raise ValueError("exactly one of text and input_ids must be given")
        if not (text or input_ids):
            raise ValueError("an empty prompt takes the server down")
        body: dict[str, Any] = {"sampling_params": dict(sampling_params or {}), **more}
        if text is not None:
            body["text"] = text
        else:
            body["input_ids"] = list(input_ids or ())
        if return_logprob:
            body["return_logprob"] = True
            if logprob_start_len is not None:
                body["logprob_start_len"] = logprob_start_len
            if top_logprobs_num is not None:
                body["top_logprobs_num"] = top_logprobs_num
        answer = self._json(self._call("POST", "/generate", timeout, body), "POST /generate")
        if not isinstance(answer.get("meta_info"), dict):
            raise ServerError(f"POST {self.base_url}/generate: no meta_info in {_excerpt(str(answer))}")
        return answer

    def ask(self, body: Mapping[str, object], timeout: float = GENERATE_SECONDS) -> object:
        """The decoded answer of ``/generate`` to a body as it stands (not streamed); a batch gives a list."""
        response = self._call("POST", "/generate", timeout, body)
        try:
            return response.json()
        except ValueError as error:
            raise ServerError(f"POST {self.base_url}/generate: not JSON: {_excerpt(response.text)}") from error

    def chat(self, body: Mapping[str, object], timeout: float = GENERATE_SECONDS) -> dict[str, Any]:
        """The decoded answer of ``/v1/chat/completions`` (not streamed)."""
        where = "/v1/chat/completions"
        return self._json(self._call("POST", where, timeout, body), f"POST {where}")

    def models(self) -> dict[str, Any]:
        """The answer of ``/v1/models``: under ``data`` what is served, with ``max_model_len``."""
        return self._json(self._call("GET", "/v1/models", CONTROL_SECONDS), "GET /v1/models")

    def loads(self) -> list[dict[str, Any]] | None:
        """What each rank of the schedulers has to do, as ``/v1/loads`` tells it; None where there is no such thing."""
        try:
            answer = self._json(self._call("GET", "/v1/loads?include=core", CONTROL_SECONDS), "GET /v1/loads")
        except ServerError as error:
            if error.status == 404:
                return None
            raise
        loads = answer.get("loads")
        if not isinstance(loads, list) or not all(isinstance(load, dict) for load in loads):
            raise ServerError(f"GET {self.base_url}/v1/loads: no list of loads in {_excerpt(str(answer))}")
        return loads

    def abort(self, rid: str) -> None:
        """Give up the request that was sent with ``rid``."""
        self._call("POST", "/abort_request", CONTROL_SECONDS, {"rid": rid})

    @contextlib.contextmanager
    def stream(
        self, body: Mapping[str, object], timeout: float = GENERATE_SECONDS
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a streamed ``/generate``; leaving the context cuts the connection.

        ``timeout``: seconds without a byte.
        """
        where = f"POST {self.base_url}/generate"
        with self._call("POST", "/generate", timeout, {**body, "stream": True}, stream=True) as response:
            yield _events(response, where)

    def _answers(self, path: str, timeout: float) -> bool:
        try:
            self._call("GET", path, timeout)
        except ServerError:
            return False
        return True

    def _first_of(self, paths: Sequence[str], timeout: float) -> dict[str, Any]:
        for path in paths[:-1]:
            try:
                return self._json(self._call("GET", path, timeout), f"GET {path}")
            except ServerError as error:
                if error.status != 404:
                    raise
        return self._json(self._call("GET", paths[-1], timeout), f"GET {paths[-1]}")

    def _call(
        self, method: str, path: str, timeout: float, body: Any = None, *, stream: bool = False
    ) -> requests.Response:
        where = f"{method} {self.base_url}{path}"
        try:
            response = self._session.request(
                method, self.base_url + path, json=body, timeout=(CONNECT_SECONDS, timeout), stream=stream
            )
        except requests.RequestException as error:
            raise ServerError(f"{where}: {type(error).__name__}: {_excerpt(str(error))}") from error
        if response.status_code != 200:
            raise ServerError(
                f"{where}: HTTP {response.status_code}: {_excerpt(response.text)}", status=response.status_code
            )
        return response

    def _json(self, response: requests.Response, where: str) -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError as error:
            raise ServerError(f"{where} at {self.base_url}: not JSON: {_excerpt(response.text)}") from error
        if not isinstance(answer, dict):
            raise ServerError(f"{where} at {self.base_url}: expected an object, got {_excerpt(str(answer))}")
        return answer


def _events(response: requests.Response, where: str) -> Iterator[dict[str, Any]]:
    try:
        for line in response.iter_lines():
            data = line.removeprefix(b"data: ").strip()
            if data and data != b"[DONE]":
                event = json.loads(data)
                if not isinstance(event, dict) or "error" in event:
                    raise ServerError(f"{where}: expected an event of an answer, got {_excerpt(str(event))}")
                yield event
    except requests.RequestException as error:
        raise ServerError(f"{where}: {type(error).__name__}: {_excerpt(str(error))}") from error
    except ValueError as error:
        raise ServerError(f"{where}: an event that is not JSON: {error}") from error


def _excerpt(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= EXCERPT_CHARACTERS else text[:EXCERPT_CHARACTERS] + "..."
