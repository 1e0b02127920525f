"""The stand-in's model: a token is a byte, and the next one is a fixed function of everything before it."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator

VOCABULARY = 256
FIRST_PRINTABLE, PRINTABLE = 32, 95
LOGPROB_FIRST, LOGPROB_SECOND, LOGPROB_OTHER = -0.25, -2.0, -9.0
LOGPROB_NEXT, LOGPROB_STEP = -4.2, 0.2
TOLD = 20
"""Of the likeliest tokens, those that are likelier than any other."""


def encode(text: str) -> list[int]:
    return list(text.encode())


def decode(tokens: list[int]) -> str:
    return bytes(token % 256 for token in tokens).decode("utf-8", "replace")


class Model:
    """Deterministic answers: the same with and without speculation, and other ones for every other context."""

    def __init__(self, context: list[int]) -> None:
        self.hash = zlib.crc32(bytes(token % 256 for token in context))

    def top(self, count: int = 2) -> list[tuple[float, int]]:
        """The ``count`` likeliest next tokens with their log-probabilities."""
        # The low bits of a CRC depend on the last bytes alone: mix before use.
        mixed = self.hash * 2654435761 >> 7
        first = FIRST_PRINTABLE + mixed % PRINTABLE
        second = FIRST_PRINTABLE + (mixed // PRINTABLE + 1 + first) % PRINTABLE
        if second == first:
            second = FIRST_PRINTABLE + (first - FIRST_PRINTABLE + 1) % PRINTABLE
        others = (FIRST_PRINTABLE + (first + step) % PRINTABLE for step in range(PRINTABLE))
        ranked = [(LOGPROB_FIRST, first), (LOGPROB_SECOND, second)]
        ranked += [
            (LOGPROB_NEXT - LOGPROB_STEP * place, token)
            for place, token in enumerate(token for token in others if token not in (first, second))
        ]
        return ranked[:count]

    def drawn(self, temperature: float, top_k: int) -> int:
        """A token at random, from the ``top_k`` likeliest."""
        ranked = self.top(top_k)
        weights = [math.exp(logprob / temperature) for logprob, _ in ranked]
        return random.choices([token for _, token in ranked], weights)[0]

    def logprob(self, token: int) -> float:
        return next((logprob for logprob, known in self.top(TOLD) if known == token), LOGPROB_OTHER)

    def push(self, token: int) -> None:
        self.hash = zlib.crc32(bytes([token % 256]), self.hash)


def steps(count: int, accept_length: float, num_steps: int | None) -> Iterator[int]:
    """Sizes of the steps that yield ``count`` tokens: the prefill's one, then one or several for each verify step."""
    if count <= 0:
        return
    yield 1
    left = count - 1
    owed = 0.0
    while left > 0:
        owed += min(accept_length, num_steps + 1) if num_steps else 1.0
        size = min(max(int(owed), 1), left)
        owed -= size
        left -= size
        yield size


class TiedModel(Model):
    """One whose second token is as good as the first in one of EVERY contexts."""

    EVERY, BY = 16, 1e-7
    turned = False
    """Whether the second one leads there, as rounding may have it elsewhere."""

    def top(self, *count: int) -> list[tuple[float, int]]:
        (best, first), (_, second), *others = super().top(*count)
        if self.hash % self.EVERY:
            return [(best, first), (LOGPROB_SECOND, second), *others]
        if self.turned:
            first, second = second, first
        return [(best, first), (best - self.BY, second), *others]

    def logprob(self, token: int) -> float:
        return next((logprob for logprob, known in self.top() if known == token), super().logprob(token))


class TurnedModel(TiedModel):
    turned = True
