"""Answers as a server that counts well would give them, from the sizes of their verify steps."""

from __future__ import annotations

import random
from collections.abc import Sequence

from mtpgate.checks.answers import Answer


def meta_of(accepted: Sequence[int], *, num_steps: int = 3) -> dict[str, object]:
    """The counts of verify steps that accepted so many drafts each."""
    return {
        "spec_verify_ct": len(accepted),
        "spec_num_correct_drafts": sum(accepted),
        "spec_num_proposed_drafts": len(accepted) * num_steps,
        "spec_correct_drafts_histogram": [accepted.count(number) for number in range(max(accepted, default=0) + 1)],
    }


def answer_of(accepted: Sequence[int], *, cut: int = 0, prompt: str = "prose-0", num_steps: int = 3) -> Answer:
    """An answer whose steps accepted so many drafts, and whose last step was cut by ``cut`` tokens."""
    tokens = 1 + len(accepted) + sum(accepted) - cut
    meta = meta_of(list(accepted), num_steps=num_steps)
    return Answer(prompt, tuple(range(tokens)), "x" * tokens, "length", tokens, meta)


def generated(rng: random.Random, prompt: str, *, tokens: int = 64, num_steps: int = 3, mean: float = 0.6) -> Answer:
    """An answer of exactly ``tokens``, each draft accepted with a probability that the prompt has for itself."""
    likely = min(0.98, max(0.02, rng.betavariate(4 * mean, 4 * (1 - mean))))
    accepted: list[int] = []
    made = 1
    while made < tokens:
        drafts = 0
        while drafts < num_steps and rng.random() < likely:
            drafts += 1
        accepted.append(drafts)
        made += drafts + 1
    return answer_of(accepted, cut=made - tokens, prompt=prompt, num_steps=num_steps)
