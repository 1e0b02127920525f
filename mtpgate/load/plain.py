"""Plain calls to the server's native HTTP interface, for questions whose timing does not matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import requests

from mtpgate.load.prompts import Tokenize

Generate = Callable[[Mapping[str, object]], object]
"""Takes the JSON body of a ``/generate`` request (not streamed) and returns the decoded JSON of the answer."""


def http_generate(base_url: str, *, timeout_seconds: float = 300.0) -> Generate:
    """A :data:`Generate` over HTTP.

    It raises ``requests.HTTPError`` (with the server's words) for an answer other than 200, and
    ``requests.ConnectionError`` or ``requests.Timeout`` where there is none.
    """

    def generate(body: Mapping[str, object]) -> object:
        return _post(f"{base_url}/generate", body, timeout_seconds)

    return generate


def http_tokenize(base_url: str, *, timeout_seconds: float = 30.0) -> Tokenize:
    """The tokenizer of the server itself (``/tokenize``, SGLang 0.5.x), so that no model files are needed here."""

    def tokenize(text: str) -> list[int]:
        answer = _post(f"{base_url}/tokenize", {"prompt": text}, timeout_seconds)
        tokens = answer["tokens"] if isinstance(answer, dict) else []
        return [int(token) for token in tokens]

    return tokenize


def _post(url: str, body: Mapping[str, object], timeout_seconds: float) -> object:
    with requests.Session() as session:
        # The server is on this machine: a proxy of the environment must not get between.
        session.trust_env = False
        response = session.post(url, json=body, timeout=timeout_seconds)
    if not response.ok:
        raise requests.HTTPError(f"{url} answered {response.status_code}: {response.text[:300]}", response=response)
    return response.json()
