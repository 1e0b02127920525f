"""The greedy answers of one launch to the parity prompts, each asked alone or all in flight together.

The last bits of a logit depend on the shape of the batch it was computed in, so answers are only ever compared at
equal composition: alone with alone, batch with batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from mtpgate.load.prompts import Prompt
from mtpgate.server.client import ServerError

T = TypeVar("T")

Generate = Callable[[Mapping[str, object]], object]
"""Takes the JSON body of a ``/generate`` request (not streamed) and returns the decoded JSON of the answer. Is called
from several threads at once."""

START_SECONDS = 60.0
"""For the threads of a batch to be there; a machine on which that takes longer is not fit to ask."""


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

    composition: str
    """The composition's name; ``single`` is one after the other."""
    answers: Mapping[str, Answer]
    max_new_tokens: int
    in_flight: int = 1
    """The most requests that had been sent and not been answered at one moment."""

    def bare(self) -> Answers:
        """Without the log-probabilities, which are many."""
        answers = {
            name: replace(answer, meta={key: item for key, item in answer.meta.items() if "logprobs" not in key})
            for name, answer in self.answers.items()
        }
        return replace(self, answers=answers)


def collect_answers(
    generate: Generate,
    prompts: Sequence[Prompt],
    *,
    composition: str,
    max_new_tokens: int = 64,
    top_logprobs: int = 0,
) -> Answers:
    """Ask all prompts greedily, up to ``max_new_tokens`` or the model's end of text.

    ``single``: one request after the other. Any other composition: all at once, each a request of its own. With
    ``top_logprobs`` the answers' ``meta`` tells so many of the likeliest tokens at each position.

    Raises:
        ServerError: the answer is not what ``/generate`` returns (the message quotes it).
        Whatever ``generate`` raises when there is no answer.
    """
    asked: dict[str, object] = {"sampling_params": {"temperature": 0, "max_new_tokens": max_new_tokens}}
    if top_logprobs:
        asked |= {"return_logprob": True, "top_logprobs_num": top_logprobs}
    bodies = [{"text": prompt.text, **asked} for prompt in prompts]
    together = composition != "single" and len(bodies) > 1
    timed = _at_once(generate, bodies) if together else [_timed(generate, body) for body in bodies]
    pairs = zip(prompts, timed, strict=True)
    return Answers(
        composition=composition,
        answers={prompt.id: answer_of(prompt.id, answer) for prompt, (_, _, answer) in pairs},
        max_new_tokens=max_new_tokens,
        in_flight=most_in_flight((sent, answered) for sent, answered, _ in timed),
    )


_Timed = tuple[float, float, object]
"""When it was sent and answered, seconds on one clock, and the answer."""


def _timed(generate: Generate, body: Mapping[str, object]) -> _Timed:
    sent = time.monotonic()
    answer = generate(body)
    return sent, time.monotonic(), answer


def _at_once(generate: Generate, bodies: Sequence[Mapping[str, object]]) -> list[_Timed]:
    start = threading.Barrier(len(bodies))

    def ask(body: Mapping[str, object]) -> _Timed:
        start.wait(START_SECONDS)
        return _timed(generate, body)

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(ask, bodies))


def most_in_flight(spans: Iterable[tuple[float, float]]) -> int:
    """The most spans ``(sent, answered)`` that have a moment in common."""
    # An answer that comes at the very moment of a send is out of its way.
    changes = sorted(change for sent, answered in spans for change in ((sent, 1), (answered, -1)))
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


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
