"""What the stand-in refuses, in SGLang 0.5.23's words, and what it dies of if told to."""

from __future__ import annotations

import json
from typing import Any

from answers import VOCABULARY, encode

CONTEXT_LENGTH = 2048
MAX_INPUT = CONTEXT_LENGTH - 6
"""``max_req_input_len``: inputs below it are taken."""


def tokens_of(request: dict[str, Any]) -> list[int]:
    return list(request["input_ids"]) if "input_ids" in request else encode(request["text"])


def is_batch(request: dict[str, Any]) -> bool:
    """Whether it asks for several prompts at once."""
    ids = request.get("input_ids")
    return isinstance(request.get("text"), list) or (isinstance(ids, list) and bool(ids) and isinstance(ids[0], list))


def deadly(request: dict[str, Any]) -> str | None:
    """The kind of input that the real server dies of: ``empty``, ``beyond`` or ``negative``; or None."""
    if is_batch(request):
        return None
    tokens = tokens_of(request)
    if not tokens:
        return "empty"
    if min(tokens) < 0:
        return "negative"
    return "beyond" if max(tokens) >= VOCABULARY else None


def refusal(request: dict[str, Any]) -> str | None:
    """Why a request of ``/generate`` is answered with 400; None if it is answered."""
    if "text" not in request and "input_ids" not in request:
        return "Either text, input_ids or input_embeds should be provided."
    parameters = request.get("sampling_params") or {}
    for name, wrong, expected in (
        ("temperature", lambda value: value < 0, "a non-negative finite number"),
        ("max_new_tokens", lambda value: value < 0, "at least 0"),
        ("top_p", lambda value: not 0 < value <= 1, "in (0, 1]"),
    ):
        if name in parameters and wrong(parameters[name]):
            return f"{name} must be {expected}, got {parameters[name]}."
    if "json_schema" in parameters:
        try:
            json.loads(parameters["json_schema"])
        except ValueError as error:
            return f"Failed to compile json grammar: {error}"
    return None if is_batch(request) else _too_long(len(tokens_of(request)), parameters)


def _too_long(count: int, parameters: dict[str, Any]) -> str | None:
    limit = f"the model's context length ({CONTEXT_LENGTH} tokens)"
    if count >= CONTEXT_LENGTH:
        return f"The input ({count} tokens) is longer than {limit}."
    if count >= MAX_INPUT:
        return f"Input length ({count} tokens) exceeds the maximum allowed length ({MAX_INPUT} tokens)."
    total = count + int(parameters.get("max_new_tokens", 0))
    if total > CONTEXT_LENGTH:
        return f"Requested token count exceeds the model's maximum context length. You requested {total} tokens."
    return None
