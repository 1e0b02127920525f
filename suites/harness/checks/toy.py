"""A toy model: its logits are a fixed function of the context, moved as much as a batch shape moves them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from mtpgate.checks.answers import Answer, Answers
from mtpgate.checks.control import Control, calibrate, table_of
from mtpgate.checks.forcing import TOP
from mtpgate.checks.logprobs import Position

VOCABULARY = 50
LENGTH = 32


@cache
def exact_logits(context: tuple[int, ...]) -> tuple[float, ...]:
    """The toy's logits, which every test asks for the same contexts."""
    exact = random.Random(str(list(context)))
    return tuple(exact.gauss(0.0, 4.0) for _ in range(VOCABULARY))


@dataclass
class Toy:
    """The next token's logits are a fixed function of all tokens before it, plus rounding of a scale."""

    rounding: float
    generator: random.Random

    def top(self, context: Sequence[int]) -> list[tuple[float, int]]:
        logits = [logit + self.generator.gauss(0.0, self.rounding) for logit in exact_logits(tuple(context))]
        total = math.log(sum(math.exp(logit) for logit in logits))
        return sorted(((logit - total, token) for token, logit in enumerate(logits)), reverse=True)

    def answer(self, name: str, prompt: list[int], wrong_at: int | None = None) -> Answer:
        output: list[int] = []
        chosen, top = [], []
        for place in range(LENGTH):
            ranked = self.top([*prompt, *output])
            logprob, token = ranked[3 if place == wrong_at else 0]
            chosen.append([logprob, token, None])
            top.append([[one, known, None] for one, known in ranked[:TOP]])
            output.append(token)
        meta = {"output_token_logprobs": chosen, "output_top_logprobs": top}
        return Answer(name, tuple(output), " ".join(map(str, output)), "length", LENGTH, meta)

    def force(self, name: str, text: str, answer: Sequence[int]) -> tuple[Position, ...]:
        prompt = PROMPTS[name]
        return tuple(self._forced(prompt, answer, place) for place in range(len(answer)))

    def _forced(self, prompt: list[int], answer: Sequence[int], place: int) -> Position:
        ranked = self.top([*prompt, *answer[:place]])
        logprob = next(one for one, known in ranked if known == answer[place])
        return Position(tuple(ranked[:TOP]), (logprob, answer[place]))


PROMPTS = {f"prose-{number}": [number, 7, number * 3] for number in range(12)}
TEXTS = {name: str(prompt) for name, prompt in PROMPTS.items()}


def ask(toy: Toy, composition: str = "single", wrong: dict[str, int] | None = None) -> Answers:
    given = {name: toy.answer(name, prompt, (wrong or {}).get(name)) for name, prompt in PROMPTS.items()}
    return Answers(composition, given, LENGTH)


def control_of(toy: Toy) -> tuple[Control, Answers]:
    single = ask(toy)
    forced = {name: toy.force(name, "", answer.output_ids) for name, answer in single.answers.items()}
    tables = {"single": table_of(single), "batch": table_of(ask(toy, "batch")), "forced": forced}
    return calibrate(tables), single
