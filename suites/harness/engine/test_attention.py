"""The attention operators against a softmax written out token by token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from mtpgate.engine.overlay.mtpgate_engine.attention import decode_attention_cpu, extend_attention_cpu

DIM = 8
SCALE = 1.0 / math.sqrt(DIM)
POISON = 1e4
"""Stands in pool slots that a request must not look at: one look shifts the result by orders of magnitude."""


@dataclass
class Batch:
    """Requests of given lengths in a paged pool, each token's K and V at its slot, all other slots poisoned."""

    lengths: list[int]
    heads: tuple[int, int] = (4, 2)
    page_size: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        heads, kv_heads = self.heads
        pages = [math.ceil(length / self.page_size) for length in self.lengths]
        order = torch.randperm(sum(pages) + 3, generator=generator)
        slots = (len(order)) * self.page_size
        self.keys = [torch.randn(length, kv_heads, DIM, generator=generator) for length in self.lengths]
        self.values = [torch.randn(length, kv_heads, DIM, generator=generator) for length in self.lengths]
        self.queries = [torch.randn(length, heads, DIM, generator=generator) for length in self.lengths]
        self.k_pool = torch.full((slots, kv_heads, DIM), POISON)
        self.v_pool = torch.full((slots, kv_heads, DIM), POISON)
        # Rows of other requests lie between ours; what a row holds past its request's length is stale.
        width = max(self.lengths) + 5
        self.rows = torch.arange(len(self.lengths)) * 2 + 1
        self.table = torch.full((2 * len(self.lengths) + 1, width), int(order[-1]) * self.page_size, dtype=torch.int32)
        taken = 0
        for row, length, count, keys, values in zip(
            self.rows.tolist(), self.lengths, pages, self.keys, self.values, strict=True
        ):
            page = order[taken : taken + count].repeat_interleave(self.page_size)
            slot = (page * self.page_size + torch.arange(len(page)) % self.page_size)[:length]
            taken += count
            self.table[row, :length] = slot.to(torch.int32)
            self.k_pool[slot], self.v_pool[slot] = keys, values

    @property
    def seq_lens(self) -> torch.Tensor:
        return torch.tensor(self.lengths)

    def slots(self, request: int, first: int) -> torch.Tensor:
        return self.table[self.rows[request], first : self.lengths[request]].to(torch.int64)

    def reference(self, request: int, position: int, visible: list[int]) -> np.ndarray:
        """The attention output of the token at ``position`` over the tokens at the positions ``visible``."""
        heads, kv_heads = self.heads
        result = np.zeros((heads, DIM))
        for head in range(heads):
            shared = head * kv_heads // heads
            query = self.queries[request][position, head].double().numpy()
            scores = [float(query @ self.keys[request][i, shared].double().numpy()) * SCALE for i in visible]
            weights = np.exp(np.array(scores) - max(scores))
            for weight, i in zip(weights / weights.sum(), visible, strict=True):
                result[head] += weight * self.values[request][i, shared].double().numpy()
        return result


def decode(batch: Batch, key: torch.Tensor | None = None, value: torch.Tensor | None = None) -> torch.Tensor:
    """Attention of each request's last token."""
    query = torch.stack([queries[-1] for queries in batch.queries])
    output = torch.full_like(query, math.nan)
    loc = torch.cat([batch.slots(i, length - 1) for i, length in enumerate(batch.lengths)])
    decode_attention_cpu(
        query, batch.k_pool, batch.v_pool, 1.0, 1.0, output, key, value, loc, torch.empty(0), batch.table, batch.rows,
        batch.seq_lens, SCALE, 0.0, False, 0, None, None,
    )  # fmt: skip
    return output


def extend(
    batch: Batch, runs: list[int], tree_mask: torch.Tensor | None = None, *, pass_new: bool = True
) -> list[torch.Tensor]:
    """Attention of each request's last ``runs[i]`` tokens, whose K and V are passed along or lie in the pool."""
    query = torch.cat([queries[len(queries) - run :] for queries, run in zip(batch.queries, runs, strict=True)])
    key = torch.cat([keys[len(keys) - run :] for keys, run in zip(batch.keys, runs, strict=True)])
    value = torch.cat([values[len(values) - run :] for values, run in zip(batch.values, runs, strict=True)])
    output = torch.full_like(query, math.nan)
    lengths = torch.tensor(runs)
    extend_attention_cpu(
        query, key if pass_new else None, value if pass_new else None, output, batch.k_pool, batch.v_pool, 1.0, 1.0,
        batch.table, batch.rows, batch.seq_lens, lengths, lengths.cumsum(0) - lengths, max(runs), SCALE, 0.0, False, 0,
        None, None, tree_mask, True,
    )  # fmt: skip
    return list(output.split(runs))


def assert_causal(batch: Batch, runs: list[int], outputs: list[torch.Tensor]) -> None:
    for request, (run, output) in enumerate(zip(runs, outputs, strict=True)):
        length = batch.lengths[request]
        for i, position in enumerate(range(length - run, length)):
            expected = batch.reference(request, position, list(range(position + 1)))
            np.testing.assert_allclose(
                output[i].numpy(), expected, atol=1e-5, err_msg=f"request {request}, {position=}"
            )


LENGTHS = pytest.mark.parametrize("lengths", [[1], [7], [3, 1, 12], [9, 9, 9], [5, 17, 2, 8, 1]], ids=str)
HEADS = pytest.mark.parametrize("heads", [(4, 2), (4, 4), (6, 1)], ids=["grouped", "one-to-one", "one-shared"])
PAGES = pytest.mark.parametrize("page_size", [1, 4])


@LENGTHS
@HEADS
@PAGES
def test_decode_is_the_softmax_over_the_whole_context(
    lengths: list[int], heads: tuple[int, int], page_size: int
) -> None:
    batch = Batch(lengths, heads, page_size)
    assert_causal(batch, [1] * len(lengths), [row[None] for row in decode(batch)])


def test_decode_stores_the_new_token_and_attends_to_it() -> None:
    batch = Batch([4, 9, 1])
    new = [batch.slots(i, length - 1) for i, length in enumerate(batch.lengths)]
    batch.k_pool[torch.cat(new)] = batch.v_pool[torch.cat(new)] = POISON
    key, value = torch.stack([keys[-1] for keys in batch.keys]), torch.stack([values[-1] for values in batch.values])
    output = decode(batch, key, value)
    assert_causal(batch, [1, 1, 1], [row[None] for row in output])
    assert torch.equal(batch.k_pool[torch.cat(new)], key)
    assert torch.equal(batch.v_pool[torch.cat(new)], value)


@pytest.mark.parametrize(
    ("lengths", "runs"),
    [
        ([6], [6]),  # a whole prompt
        ([9], [4]),  # a prompt with a cached prefix, or a chunk of one
        ([5, 12, 1], [5, 3, 1]),  # a mixed prefill batch
        ([8, 5, 14], [4, 4, 4]),  # verification of a chain of draft tokens
        ([4, 4], [4, 4]),
        ([7, 3, 6], [2, 0, 6]),  # a request that brings nothing
    ],
    ids=str,
)
@HEADS
@PAGES
def test_extend_is_causal(lengths: list[int], runs: list[int], heads: tuple[int, int], page_size: int) -> None:
    batch = Batch(lengths, heads, page_size)
    assert_causal(batch, runs, extend(batch, runs))


@pytest.mark.parametrize("runs", [[3, 3], [2, 5]], ids=["equal", "ragged"])
def test_extend_takes_new_tokens_from_its_arguments_rather_than_from_the_pool(runs: list[int]) -> None:
    batch = Batch([6, 11])
    for request, run in enumerate(runs):
        slots = batch.slots(request, batch.lengths[request] - run)
        batch.k_pool[slots] = batch.v_pool[slots] = POISON
    assert_causal(batch, runs, extend(batch, runs))


@pytest.mark.parametrize("runs", [[3, 3], [2, 5]], ids=["equal", "ragged"])
def test_extend_without_new_keys_reads_them_from_the_pool(runs: list[int]) -> None:
    batch = Batch([6, 11])
    assert_causal(batch, runs, extend(batch, runs, pass_new=False))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lengths", [[9], [13, 6, 8, 20]], ids=str)
def test_extend_with_a_tree_mask_sees_the_prefix_and_the_marked_tokens(lengths: list[int], seed: int) -> None:
    run = 6
    batch = Batch(lengths, seed=seed)
    mask = torch.rand(len(lengths), run, run, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask |= torch.eye(run, dtype=torch.bool)
    outputs = extend(batch, [run] * len(lengths), mask.flatten())
    for request, length in enumerate(lengths):
        prefix = length - run
        for i in range(run):
            visible = [*range(prefix), *(prefix + j for j in range(run) if mask[request, i, j])]
            expected = batch.reference(request, prefix + i, visible)
            np.testing.assert_allclose(outputs[request][i].numpy(), expected, atol=1e-5)


def test_an_empty_batch_is_no_error() -> None:
    empty, index = torch.empty(0, 4, DIM), torch.empty(0, dtype=torch.int64)
    pool, table = torch.zeros(1, 2, DIM), torch.zeros(1, 1, dtype=torch.int32)
    decode_attention_cpu(
        empty, pool, pool, 1.0, 1.0, empty, None, None, index, empty, table, index, index, SCALE, 0.0, False, 0
    )
    extend_attention_cpu(
        empty, None, None, empty, pool, pool, 1.0, 1.0, table, index, index, index, index, 0, SCALE, 0.0, False, 0
    )


@pytest.mark.parametrize(
    ("changed", "feature"),
    [
        ({"k_scale": 0.5}, "quantised"),
        ({"logit_cap": 30.0}, "logit cap"),
        ({"is_cross_attn": True}, "cross attention"),
        ({"sliding_window_size": 128}, "sliding window"),
        ({"sinks": torch.zeros(4)}, "sinks"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_operators_do_not_cover_is_refused_by_name(changed: dict[str, object], feature: str) -> None:
    batch = Batch([3])
    arguments: dict[str, object] = {
        "query": batch.queries[0][-1:],
        "k_cache": batch.k_pool,
        "v_cache": batch.v_pool,
        "k_scale": 1.0,
        "v_scale": 1.0,
        "output": torch.empty(1, 4, DIM),
        "key": None,
        "value": None,
        "loc": batch.slots(0, 2),
        "attn_logits": torch.empty(0),
        "req_to_token": batch.table,
        "req_pool_indices": batch.rows,
        "seq_lens": batch.seq_lens,
        "sm_scale": SCALE,
        "logit_cap": 0.0,
        "is_cross_attn": False,
        "sliding_window_size": 0,
    }
    with pytest.raises(NotImplementedError, match=feature):
        decode_attention_cpu(**{**arguments, **changed})  # type: ignore[arg-type]
