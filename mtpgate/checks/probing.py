"""What probes are made of: the server as they see it, and how they ask and fail.

A probe asks what public reports show to break after a green start. It fails with :class:`ProbeFailed`, whose text says
what was asked, expected and found. A server that answers with an error, not at all, or dies, raises
:class:`mtpgate.server.client.ServerError` as anywhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol

from mtpgate.checks.answers import Answer, answer_of
from mtpgate.checks.sanity import check_output
from mtpgate.server.client import ServerError

ANSWER_SECONDS = 180.0
"""For one answer of a probe; on a GPU the first request of a new shape may compile a kernel."""

PROMPT = "Count up: one, two, three, four,"
LONGEST_SHOWN = 80

Body = Mapping[str, object]


class ProbeFailed(AssertionError):
    """The server answered, and not as it must."""


class NotAsked(Exception):
    """The probe does not apply to this server; the text says why. Not a pass: nothing was seen."""


class Asked(Protocol):
    """The calls of :class:`mtpgate.server.client.ServerClient` that probes make, from several threads at once."""

    def ask(self, body: Body, timeout: float = ...) -> object: ...
    def chat(self, body: Body, timeout: float = ...) -> dict[str, Any]: ...
    def stream(self, body: Body, timeout: float = ...) -> AbstractContextManager[Iterator[dict[str, Any]]]: ...
    def abort(self, rid: str) -> None: ...
    def loads(self) -> list[dict[str, Any]] | None: ...
    def flush_cache(self) -> None: ...
    def tokenize(self, text: str) -> list[int]: ...
    def models(self) -> dict[str, Any]: ...


def body(prompt: str | Sequence[int], new_tokens: int, *, whole: bool = True, **sampling: object) -> dict[str, object]:
    """A greedy request of ``/generate``; ``whole``: not ended by the model's own end of text."""
    given = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
    parameters = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": whole, **sampling}
    return {**given, "sampling_params": parameters}


def answer(server: Asked, what: str, request: Body) -> Answer:
    """The answer to a request, whatever it is; ``what`` names it in errors."""
    return answer_of(what, server.ask(request, ANSWER_SECONDS))


def whole_answer(server: Asked, what: str, request: Body) -> Answer:
    """As :func:`answer`, of exactly the tokens that were asked for, and a sane one."""
    return require_whole(what, request, answer(server, what, request))


def require_whole(what: str, request: Body, given: Answer) -> Answer:
    asked = _asked_for(request)
    if (given.output_tokens, len(given.output_ids), given.finish_reason) != (asked, asked, "length"):
        raise ProbeFailed(
            f"{what}: asked for {asked} tokens, got {len(given.output_ids)} (counted as {given.output_tokens}), "
            f"finish_reason {given.finish_reason!r}: {shown(given.text)}"
        )
    return require_sane(what, request, given)


def require_sane(what: str, request: Body, given: Answer) -> Answer:
    """As every answer must be, whatever was asked (:mod:`mtpgate.checks.sanity`)."""
    findings = check_output(
        what,
        given.text,
        given.output_ids,
        counted=given.output_tokens,
        finish_reason=given.finish_reason,
        asked=_asked_for(request),
        meta=given.meta,
    )
    # A stop is cut off, and may have been all of the text.
    stops = {"stop", "stop_token_ids"} & set(_parameters(request))
    wrong = [str(finding) for finding in findings if not (stops and finding.what == "empty")]
    if wrong:
        raise ProbeFailed("; ".join(wrong))
    return given


def _parameters(request: Body) -> Mapping[str, Any]:
    parameters = request["sampling_params"]
    assert isinstance(parameters, dict)
    return parameters


def _asked_for(request: Body) -> int:
    return int(_parameters(request)["max_new_tokens"])


def at_once(server: Asked, requests: Mapping[str, Body]) -> dict[str, Answer]:
    """The answers to requests that are sent at once, by what names each."""
    with ThreadPoolExecutor(max(len(requests), 1)) as pool:
        found = pool.map(lambda item: answer(server, *item), requests.items())
        return dict(zip(requests, found, strict=True))


def whole_answers(server: Asked, what: str, requests: Sequence[Body]) -> list[Answer]:
    """The answers to requests that are sent at once, each of the tokens that it asks for."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: whole_answer(server, what, request), requests))


def require_same(what: str, expected: Sequence[int], found: Sequence[int]) -> None:
    """Token by token; names the first difference."""
    if list(expected) == list(found):
        return
    pairs = enumerate(zip(expected, found, strict=False))
    at = next((index for index, (left, right) in pairs if left != right), min(len(expected), len(found)))
    raise ProbeFailed(
        f"{what}: expected tokens {_near(expected, at)}, found {_near(found, at)}: they differ from token {at} on "
        f"({len(expected)} and {len(found)} tokens)"
    )


def require_refused(server: Asked, what: str, request: Body, *, chat: bool = False) -> None:
    """A refusal is any HTTP 4xx."""
    try:
        given = server.chat(request, ANSWER_SECONDS) if chat else server.ask(request, ANSWER_SECONDS)
    except ServerError as error:
        if error.status is None or not is_refusal(error):
            raise
        return
    raise ProbeFailed(f"{what}: expected a refusal (HTTP 4xx), got an answer: {shown(str(given))}")


def is_refusal(error: ServerError) -> bool:
    return error.status is not None and 400 <= error.status < 500


def shown(text: str) -> str:
    """A short form of an answer for a message."""
    return repr(text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "...")


def _near(tokens: Sequence[int], at: int) -> str:
    begin = max(at - 2, 0)
    part = ", ".join(str(token) for token in tokens[begin : begin + 6])
    return f"[{'..., ' if begin else ''}{part}{', ...' if begin + 6 < len(tokens) else ''}]"
