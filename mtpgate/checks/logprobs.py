"""The log-probabilities in an answer of ``/generate``: how far a token was from being the best one.

Form (SGLang 0.5.23, ``srt/managers/tokenizer_manager.py``): ``output_token_logprobs`` is a list of ``[logprob, token,
text or None]``, ``output_top_logprobs`` a list of lists of the same; ``input_*`` likewise from ``logprob_start_len``
on, the first of them without a value. Natural logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtpgate.server.client import ServerError


@dataclass(frozen=True)
class Gap:
    """How much likelier the best token was than another, in natural logarithms (0: it was the best)."""

    value: float
    exact: bool = True
    """False: the token was not among those told, so the gap is at least this."""

    def __str__(self) -> str:
        return f"{'' if self.exact else 'at least '}{self.value:.3g}"


@dataclass(frozen=True)
class Position:
    """The likeliest tokens at one position, best first, and the one that stands there."""

    top: tuple[tuple[float, int], ...]
    """``(log-probability, token)``."""
    chosen: tuple[float, int]

    @property
    def best(self) -> int:
        return self.top[0][1]

    @property
    def lead(self) -> float:
        """By how much the best token leads the second; infinite if only one is told."""
        return self.top[0][0] - self.top[1][0] if len(self.top) > 1 else math.inf

    def logprob(self, token: int) -> float | None:
        """The token's log-probability; None if it is not told."""
        if token == self.chosen[1]:
            return self.chosen[0]
        return next((logprob for logprob, known in self.top if known == token), None)

    def gap(self, token: int) -> Gap:
        """How far ``token`` was from being the best."""
        logprob = self.logprob(token)
        if logprob is None:
            return Gap(self.top[0][0] - self.top[-1][0], exact=False)
        return Gap(max(self.top[0][0] - logprob, 0.0))


def output_positions(prompt_id: str, meta: Mapping[str, object]) -> tuple[Position, ...]:
    """The positions of an answer. ServerError if the answer has none."""
    return _positions(prompt_id, meta, "output", 0)


def forced_positions(prompt_id: str, meta: Mapping[str, object], answer_tokens: int) -> tuple[Position, ...]:
    """The last ``answer_tokens`` positions of the *input*: an answer that was given back as a prompt."""
    return _positions(prompt_id, meta, "input", -answer_tokens) if answer_tokens else ()


def _positions(prompt_id: str, meta: Mapping[str, object], side: str, start: int) -> tuple[Position, ...]:
    chosen, top = meta.get(f"{side}_token_logprobs"), meta.get(f"{side}_top_logprobs")
    if not isinstance(chosen, list) or not isinstance(top, list) or len(chosen) != len(top) or len(chosen) < -start:
        raise ServerError(f"{prompt_id}: the answer has no {side} log-probabilities, though they were asked for")
    try:
        pairs = zip(chosen[start:], top[start:], strict=True)
        return tuple(Position(_ranked(ranked), (float(one[0]), int(one[1]))) for one, ranked in pairs)
    except (TypeError, ValueError, IndexError) as error:
        raise ServerError(f"{prompt_id}: {side} log-probabilities of another form: {str(chosen)[:200]}") from error


def _ranked(told: Sequence[Sequence[float]]) -> tuple[tuple[float, int], ...]:
    ranked = sorted(((float(one[0]), int(one[1])) for one in told), reverse=True)
    if not ranked:
        raise ValueError("no token is told")
    return tuple(ranked)
