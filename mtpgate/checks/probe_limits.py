"""Probes at and beyond what a server takes: the longest input, requests to refuse, inputs that have killed servers."""

from __future__ import annotations

from mtpgate.checks.facts import Facts
from mtpgate.checks.probing import (
    PROMPT,
    Asked,
    Body,
    NotAsked,
    answer,
    body,
    is_refusal,
    require_refused,
    require_sane,
    whole_answer,
)
from mtpgate.server.client import ServerError

LONGEST_ASKED = 32_768
"""A longer input takes too long to answer for a probe."""

BEYOND_ANY_VOCABULARY = 10_000_000

REFUSED: dict[str, Body] = {
    "temperature -1": body(PROMPT, 4, temperature=-1),
    "max_new_tokens -1": body(PROMPT, -1),
    "top_p 3": body(PROMPT, 4, top_p=3),
    "a JSON schema that is no JSON": body(PROMPT, 4, json_schema='{"type": '),
    "no prompt": {"sampling_params": {"max_new_tokens": 4}},
}


def context_limit(server: Asked, facts: Facts) -> str:
    """The longest input is answered; one longer than the context is refused."""
    longest, context = facts.longest_input, facts.context_length
    if longest is None or context is None:
        raise NotAsked(f"the server names no limit (input {longest}, context {context})")
    said = []
    if longest <= LONGEST_ASKED:
        whole_answer(server, f"an input of {longest} tokens, the longest", body(_tokens(server, longest), 1))
        said.append(f"{longest} tokens answered")
    else:
        whole_answer(server, f"an input of {LONGEST_ASKED} tokens", body(_tokens(server, LONGEST_ASKED), 1))
        said.append(f"{LONGEST_ASKED} tokens answered (the limit, {longest}, not asked)")
    too_long = context + 1
    require_refused(server, f"an input of {too_long} tokens at context length {context}", _long(server, too_long))
    return ", ".join([*said, f"{too_long} refused"])


def refusals(server: Asked, facts: Facts) -> str:
    """What cannot be done is refused with an HTTP 4xx, not answered, and harms nobody."""
    for what, request in REFUSED.items():
        require_refused(server, what, request)
    require_refused(server, "a chat without messages", {"model": "default", "messages": []}, chat=True)
    return f"{len(REFUSED) + 1} kinds of bad request"


def empty_prompt(server: Asked, facts: Facts) -> str:
    """An empty prompt is refused or answered."""
    return _survived(server, "an empty prompt", body("", 4))


def token_beyond_vocabulary(server: Asked, facts: Facts) -> str:
    """A token id that no vocabulary has is refused or answered."""
    return _survived(server, f"token id {BEYOND_ANY_VOCABULARY}", body([BEYOND_ANY_VOCABULARY], 4))


def negative_token(server: Asked, facts: Facts) -> str:
    """A negative token id is refused or answered."""
    return _survived(server, "token id -1", body([-1], 4))


def _survived(server: Asked, what: str, request: Body) -> str:
    """A bad request that is not refused may be answered, as long as nobody else suffers."""
    try:
        given = answer(server, what, request)
    except ServerError as error:
        if not is_refusal(error):
            raise
        return f"{what} is refused (HTTP {error.status})"
    require_sane(what, request, given)
    return f"{what} is answered with {given.output_tokens} tokens"


def _tokens(server: Asked, count: int) -> list[int]:
    tokens = server.tokenize(PROMPT) or [1]
    return (tokens * (count // len(tokens) + 1))[:count]


def _long(server: Asked, count: int) -> Body:
    return body(_tokens(server, count), 1)
