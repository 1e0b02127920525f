"""The greedy answers of one launch to the parity prompts, each asked alone and all asked as one batch.

The last bits of a logit depend on the shape of the batch it was computed in, so answers are only ever compared at
equal composition: alone with alone, batch with batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from mtpgate.load.prompts import Prompt
from mtpgate.server.client import ServerError

Composition = Literal["single", "batch"]
T = TypeVar("T")

Generate = Callable[[Mapping[str, object]], object]
"""Takes the JSON body of a ``/generate`` request (not streamed) and returns the decoded JSON of the answer."""


@dataclass(frozen=True)
class Answer:
    """One answer. ``meta`` is the server's ``meta_info``."""

    prompt_id: str
    output_ids: tuple[int, ...]
    text: str
    finish_reason: str
    """``length``, ``stop``, ``abort``, or empty if the server gave none."""
    output_tokens: int
    """As the server counted them (``completion_tokens``)."""
    meta: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Answers:
    """The answers of one launch at one composition, by prompt id."""

    composition: Composition
    answers: Mapping[str, Answer]
    max_new_tokens: int


def collect_answers(
    generate: Generate,
    prompts: Sequence[Prompt],
    *,
    composition: Composition,
    max_new_tokens: int = 64,
    top_logprobs: int = 0,
) -> Answers:
    """Ask all prompts greedily, up to ``max_new_tokens`` or the model's end of text.

    ``single``: one request after the other. ``batch``: one request that holds all prompts, in their order, so that the
    server's batch is made of the same prompts in the same order each time. With ``top_logprobs`` the answers' ``meta``
    tells so many of the likeliest tokens at each position.

    Raises:
        ServerError: the answer is not what ``/generate`` returns (the message quotes it).
        Whatever ``generate`` raises when there is no answer.
    """
    asked: dict[str, object] = {"sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens}}
    if top_logprobs:
        asked |= {"return_logprob": True, "top_logprobs_num": top_logprobs}
    if composition == "single":
        raw = [generate({"text": prompt.text, **asked}) for prompt in prompts]
    else:
        together = generate({"text": [prompt.text for prompt in prompts], **asked})
        if not isinstance(together, list) or len(together) != len(prompts):
            raise ServerError(f"expected a list of {len(prompts)} answers, got {str(together)[:240]}")
        raw = together
    return Answers(
        composition=composition,
        answers={prompt.id: answer_of(prompt.id, item) for prompt, item in zip(prompts, raw, strict=True)},
        max_new_tokens=max_new_tokens,
    )


def answer_of(prompt_id: str, raw: object) -> Answer:
    """The answer in the decoded JSON of one ``/generate`` result.

    Raises:
        ServerError: a part that is compared or counted is missing or of another type (the message names it): without
            token ids, say, all answers would be equal token by token.
    """
    if not isinstance(raw, dict):
        raise ServerError(f"{prompt_id}: not an answer of /generate: {str(raw)[:240]}")
    meta: dict[str, object] = _part(prompt_id, raw, "meta_info", dict)
    output_ids: list[int] = _part(prompt_id, raw, "output_ids", list)
    if not all(isinstance(token, int) for token in output_ids):
        raise _unsound(prompt_id, raw, "output_ids")
    return Answer(
        prompt_id=prompt_id,
        output_ids=tuple(output_ids),
        text=_part(prompt_id, raw, "text", str),
        finish_reason=finish_reason(meta),
        output_tokens=_part(prompt_id, meta, "completion_tokens", int),
        meta=meta,
    )


def _part(prompt_id: str, raw: Mapping[str, object], name: str, kind: type[T]) -> T:
    value = raw.get(name)
    if not isinstance(value, kind):
        raise _unsound(prompt_id, raw, name)
    return value


def _unsound(prompt_id: str, raw: Mapping[str, object], name: str) -> ServerError:
    what = f"{name} is missing or of another type"
    return ServerError(f"{prompt_id}: not an answer of /generate: {what} in {str(raw)[:240]}")


def finish_reason(meta: Mapping[str, object]) -> str:
    """``length``, ``stop``, ``abort``, or empty; the server sends an object, older ones a bare string."""
    reason = meta.get("finish_reason")
    if isinstance(reason, dict):
        return str(reason.get("type") or "")
    return str(reason or "")
