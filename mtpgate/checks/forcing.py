"""Teacher forcing: an answer is given back as a prompt, and each of its tokens is weighed by the target's own prefill.

No decode loop is needed (``srt/managers/io_struct.py``): ``input_ids`` of prompt and answer, ``max_new_tokens`` 1,
``return_logprob``, ``logprob_start_len`` at the token before the answer, ``top_logprobs_num``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mtpgate.checks.answers import Generate
from mtpgate.checks.logprobs import Position, forced_positions
from mtpgate.server.client import ServerError

TOP = 5
"""Tokens told at each position: the best ones."""

Force = Callable[[str, str, Sequence[int]], tuple[Position, ...]]
"""``(prompt id, prompt text, answer's tokens)`` to the positions of the answer."""


def forcing(generate: Generate, tokenize: Callable[[str], Sequence[int]]) -> Force:
    """Teacher forcing on the server that ``generate`` and ``tokenize`` ask."""

    def force(prompt_id: str, text: str, answer: Sequence[int]) -> tuple[Position, ...]:
        prompt = list(tokenize(text))
        raw = generate(
            {
                "input_ids": [*prompt, *answer],
                "sampling_params": {"temperature": 0, "max_new_tokens": 1},
                "return_logprob": True,
                "logprob_start_len": len(prompt) - 1,
                "top_logprobs_num": TOP,
            }
        )
        meta = raw.get("meta_info") if isinstance(raw, dict) else None
        if not isinstance(meta, dict):
            raise ServerError(f"{prompt_id}: not an answer of /generate: {str(raw)[:240]}")
        positions = forced_positions(prompt_id, meta, len(answer))
        if tuple(position.chosen[1] for position in positions) != tuple(answer):
            raise ServerError(f"{prompt_id}: the server weighed other tokens than it was given")
        return positions

    return force
