"""The operators on slots and flat tokens against loops over single cells."""

from __future__ import annotations

import pytest
import torch

from mtpgate.engine.overlay.mtpgate_engine import cache, tokens

SEEDS = pytest.mark.parametrize("seed", range(5))
TREES = pytest.mark.parametrize(("topk", "num_steps"), [(1, 1), (1, 3), (2, 3), (4, 3), (2, 5)], ids=str)


class Pool:
    """A table of slots with more rows than requests, and ragged runs ``starts[i]:ends[i]`` of positions in it."""

    def __init__(self, seed: int, width: int = 40) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.bs = seed + 1
        self.table = torch.randint(1000, 9999, (2 * self.bs + 1, width), generator=generator, dtype=torch.int32)
        self.rows = torch.randperm(len(self.table), generator=generator)[: self.bs]
        self.starts = torch.randint(0, 12, (self.bs,), generator=generator)
        # Runs of length 0 are among them: a request may need no new slots.
        self.ends = self.starts + torch.randint(0, 8, (self.bs,), generator=generator)

    @property
    def cells(self) -> list[tuple[int, int]]:
        """The (row, column) cells of the runs, request after request."""
        runs = zip(self.rows.tolist(), self.starts.tolist(), self.ends.tolist(), strict=True)
        return [(row, column) for row, start, end in runs for column in range(start, end)]


@SEEDS
def test_new_slots_go_to_the_requests_positions_and_nowhere_else(seed: int) -> None:
    pool = Pool(seed)
    slots = torch.arange(len(pool.cells) + 2) + 50  # longer than needed, as SGLang's buffers are
    expected = pool.table.clone()
    for slot, cell in zip(slots.tolist(), pool.cells, strict=False):
        expected[cell] = slot
    cache.assign_req_to_token_pool_cpu(
        pool.rows, pool.table, pool.starts, pool.ends.to(torch.int32), slots, pool.table.shape[1]
    )
    assert torch.equal(pool.table, expected)


@SEEDS
def test_slots_of_ragged_runs_are_read_in_order(seed: int) -> None:
    pool = Pool(seed)
    output = torch.full((len(pool.cells) + 3,), -7)
    cache.assign_extend_cache_locs_cpu(pool.rows, pool.table, pool.starts, pool.ends, output, pool.table.shape[1])
    assert output.tolist() == [int(pool.table[cell]) for cell in pool.cells] + [-7] * 3


@SEEDS
@TREES
def test_draft_slots_follow_the_committed_tokens(seed: int, topk: int, num_steps: int) -> None:
    pool = Pool(seed)
    output = torch.full((pool.bs * topk * num_steps,), -7)
    cache.assign_draft_cache_locs_contiguous_cpu(
        pool.rows, pool.table, pool.ends, output, pool.table.shape[1], topk, num_steps
    )
    expected = [
        int(pool.table[row, length + i])
        for row, length in zip(pool.rows.tolist(), pool.ends.tolist(), strict=True)
        for i in range(topk * num_steps)
    ]
    assert output.tolist() == expected


@SEEDS
@TREES
def test_each_candidate_sees_the_prefix_and_its_own_draft_tokens(seed: int, topk: int, num_steps: int) -> None:
    pool = Pool(seed)
    # What the draft step writes to: candidate k, step s of a request is number k * num_steps + s of its draft slots.
    draft_slots = torch.empty(pool.bs * topk * num_steps, dtype=torch.int64)
    cache.assign_draft_cache_locs_contiguous_cpu(
        pool.rows, pool.table, pool.ends, draft_slots, pool.table.shape[1], topk, num_steps
    )
    own = draft_slots.view(pool.bs, topk, num_steps)
    metadata = cache.build_draft_decode_metadata_cpu(
        pool.table, pool.rows, pool.ends, topk, num_steps, pool.table.shape[1]
    )
    for request, (row, length) in enumerate(zip(pool.rows.tolist(), pool.ends.tolist(), strict=True)):
        for candidate in range(topk):
            seen = metadata[request * topk + candidate, : length + num_steps].tolist()
            assert seen[:length] == pool.table[row, :length].tolist()
            assert seen[length:] == own[request, candidate].tolist()


@SEEDS
def test_kv_cache_of_all_layers_moves_as_if_read_before_written(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    buffers = [torch.randn(12, 3 + layer, generator=generator) for layer in range(3)]
    source, target = (torch.randperm(12, generator=generator)[:5] for _ in range(2))
    expected = [buffer.clone() for buffer in buffers]
    for buffer, before in zip(expected, buffers, strict=True):
        for to, start in zip(target.tolist(), source.tolist(), strict=True):
            buffer[to] = before[start]
    addresses = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
    strides = torch.tensor([buffer[0].nbytes for buffer in buffers])
    cache.copy_all_layer_kv_cache_cpu(addresses, strides, target, source)
    assert all(torch.equal(*pair) for pair in zip(buffers, expected, strict=True))


def test_the_bonus_token_is_the_last_accepted_one() -> None:
    accepted = torch.tensor([[11, 12, 13, 14], [21, 22, 23, 24], [31, 32, 33, 34]], dtype=torch.int32)
    bonus = torch.zeros(3, dtype=torch.int32)
    tokens.fill_bonus_tokens_cpu(accepted, torch.tensor([4, 1, 2], dtype=torch.int32), bonus, 4)
    assert bonus.tolist() == [14, 21, 32]


def test_accepted_slots_are_packed_in_order() -> None:
    slots = torch.arange(100, 108)
    packed = torch.full((6,), -7)
    tokens.fill_accept_out_cache_loc_cpu(torch.tensor([0, 2, -1, 4, -1, 7]), slots, packed)
    assert packed.tolist() == [100, 102, 104, 107, -7, -7]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        (None, [2, 3, 91, 92, 7, 93, 50]),
        # The new tokens go to the selected places; the ends of the runs keep what they had.
        ([1, 3, 4], [2, 91, 3, 92, 93, 7, 50]),
    ],
    ids=["at the end", "at a selected place"],
)
def test_inputs_of_the_next_draft_layer_are_shifted(select: list[int] | None, expected: list[int]) -> None:
    ids = torch.tensor([1, 2, 3, 5, 6, 7, 50])  # runs of 3, 1 and 2, an empty one between, and padding
    tokens.rotate_input_ids_cpu(
        ids,
        torch.tensor([0, 3, 4, 4]),
        torch.tensor([3, 1, 0, 2]),
        torch.tensor([91, 92, 99, 93]),
        None if select is None else torch.tensor([*select[:2], 0, select[2]]),
    )
    assert ids.tolist() == expected
