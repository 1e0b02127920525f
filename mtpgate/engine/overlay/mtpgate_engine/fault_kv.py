"""Faults of the KV cache: tokens whose K and V are written to the wrong slot, or not at all.

Attention gets the K and V of a verify step's own tokens directly, so the step that writes wrongly still answers right;
what follows reads the pool, and with it the fault. Which slots a request owns is left as it is: nothing leaks, and the
server lives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .steps import EveryNth

Hook = tuple[str, Callable[..., Any]]

_COMMON = "sglang.srt.speculative.eagle_worker_common"
_PREPARE = f"{_COMMON}.eagle_prepare_for_verify"
_VERIFY = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.verify"
_MOVE = f"{_COMMON}.move_accept_tokens_to_target_kvcache"

DUMMY_SLOT = 0
"""SGLang's slot for padding: written to, never read."""


def mix_slots(every: int) -> tuple[Hook, ...]:
    """In each N-th verify step of at least two requests, the first and the last write their bonus token to each other's
    slot."""
    steps = EveryNth(every)

    def mixed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        forward_batch, graph = original(*args, **kwargs)
        requests = forward_batch.batch_size
        if requests >= 2 and steps.due():
            forward_batch.out_cache_loc = swapped(forward_batch.out_cache_loc, requests)
        return forward_batch, graph

    return ((_PREPARE, mixed),)


def swapped(slots: torch.Tensor, requests: int) -> torch.Tensor:
    """A copy of ``slots``, one run of equal length for each request, with the first slots of the first and the last run
    swapped."""
    mixed = slots.clone()
    rows = mixed.view(requests, -1)
    rows[0, 0], rows[-1, 0] = rows[-1, 0].clone(), rows[0, 0].clone()
    return mixed


def stale_kv(every: int) -> tuple[Hook, ...]:
    """After each N-th verify step that rejected a draft token, an accepted position keeps the rejected token's K and V.

    In a chain (topk 1) the next step's root goes where the first rejected token was: its write is lost. In a tree
    SGLang moves the accepted path to the front, over what was rejected: the move is left out.
    """
    stale = StaleKv(EveryNth(every))
    return ((_PREPARE, stale.prepared), (_VERIFY, stale.verified), (_MOVE, stale.moved))


class StaleKv:
    """Remembers what a verify step rejected, and loses the write that would have replaced it."""

    def __init__(self, steps: EveryNth) -> None:
        self._steps = steps
        self._rejected: dict[int, int] = {}
        """For each request, by its row in the pool's table, the position of the first rejected token."""

    def prepared(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Around the preparation of a verify step, which says where its tokens' K and V go."""
        forward_batch, graph = original(*args, **kwargs)
        if self._rejected:
            rows = forward_batch.out_cache_loc.clone().view(forward_batch.batch_size, -1)
            requests = zip(forward_batch.req_pool_indices.tolist(), forward_batch.seq_lens.tolist(), strict=True)
            for i, (request, length) in enumerate(requests):
                # A request that came later may have got the row of one that is gone.
                if self._rejected.get(request) == length:
                    rows[i, 0] = DUMMY_SLOT
            forward_batch.out_cache_loc = rows.flatten()
        return forward_batch, graph

    def verified(self, original: Callable[..., Any], worker: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Around a verify step: note what a chain rejected."""
        before = batch.seq_lens.tolist()
        result = original(worker, batch, *args, **kwargs)
        self._rejected = {}
        if worker.topk == 1:
            accepted = result.accept_lens.tolist()
            found = {
                request: length + tokens
                for request, length, tokens in zip(batch.req_pool_indices.tolist(), before, accepted, strict=True)
                if tokens < worker.speculative_num_draft_tokens
            }
            if found and self._steps.due():
                self._rejected = found
        return result

    def moved(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Around the move of a tree's accepted path."""
        if not self._steps.due():
            original(*args, **kwargs)
