"""Faults of what the models compute and of what is drawn from it: logits that are no numbers, a draft head that has
learnt nothing, a temperature that is another one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from .steps import EveryNth

Hook = tuple[str, Callable[..., Any]]

_RUNNER = "sglang.srt.model_executor.model_runner"
_LOAD = f"{_RUNNER}.load_model_with_memory_saver"
_FORWARD = f"{_RUNNER}.ModelRunner.forward"
_SAMPLE = "sglang.srt.layers.sampler.Sampler.forward"

SEED = 20
SPREAD = 0.02
"""Standard deviation of the random weights: how transformers initialises a model before its training."""


def nan_once(nth: int) -> tuple[Hook, ...]:
    """The target's logits for the last request become NaN, in the N-th verify step of at least two requests only."""
    struck = False
    steps = EveryNth(nth)

    def spoilt(original: Callable[..., Any], runner: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal struck
        result = original(runner, forward_batch, *args, **kwargs)
        several = forward_batch.forward_mode.is_target_verify() and forward_batch.batch_size >= 2
        if several and not struck and steps.due():
            struck = True
            logits = result.logits_output.next_token_logits
            logits[-(logits.shape[0] // forward_batch.batch_size) :] = float("nan")
        return result

    return ((_FORWARD, spoilt),)


def random_draft() -> tuple[Hook, ...]:
    """The draft model is loaded, and then has random weights; embedding and LM head it gets from the target later."""

    def randomised(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loaded = original(*args, **kwargs)
        if kwargs["is_draft_worker"]:
            randomise(loaded.model)
        return loaded

    return ((_LOAD, randomised),)


def hotter(factor: float) -> tuple[Hook, ...]:
    """Tokens are drawn at ``factor`` times the temperature that each request asks for; greedy ones stay greedy."""

    def heated(original: Callable[..., Any], sampler: Any, logits: Any, info: Any, *args: Any, **kwargs: Any) -> Any:
        # The same object serves the next step: heated in place, it would get hotter from step to step.
        changed = copy.copy(info)
        changed.temperatures = info.temperatures * factor
        return original(sampler, logits, changed, *args, **kwargs)

    return ((_SAMPLE, heated),)


@torch.no_grad()
def randomise(model: torch.nn.Module) -> None:
    """Overwrite all weights of ``model``, the same way each time; the global random state is left alone."""
    generator = torch.Generator().manual_seed(SEED)
    for weight in model.parameters():
        if weight.is_floating_point():
            weight.normal_(std=SPREAD, generator=generator)
