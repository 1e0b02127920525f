"""Memory figures of twelve versions become one budget."""

from __future__ import annotations

import pytest

from mtpgate.server.budget import Budget, RankBudget
from mtpgate.server.diagnose import diagnose_lines

ARGUMENTS = "[2026-01-01 00:00:00] server_args=ServerArgs(mem_fraction_static=0.8, speculative_algorithm='EAGLE')"


def budget(*lines: str) -> Budget:
    return diagnose_lines([ARGUMENTS, *(f"[2026-01-01 00:00:01 TP0] {line}" for line in lines)]).budget


def only(*lines: str) -> RankBudget:
    (rank,) = budget(*lines).ranks
    return rank


LOADED = ("Load weight begin. avail mem=90.00 GB", "Load weight end. type=T, avail mem=50.00 GB, mem usage=40.00 GB.")


@pytest.mark.parametrize(
    ("line", "kv", "tokens"),
    [
        ("KV Cache is allocated. K size: 9.13 GB, V size: 9.14 GB.", 18.27, None),
        ("KV Cache is allocated. #tokens: 133020, K size: 9.13 GB, V size: 9.13 GB", 18.26, 133020),
        ("KV Cache is allocated. #tokens: 515648, KV size: 33.75 GB", 33.75, 515648),
        ("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 7, K size: 1.00 GB, V size: 1.00 GB", 2.0, 7),
        ("full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 7, KV size: 1.50 GB", 1.5, 7),
        (
            "DSV4 memory calculation: bytes_per_full_token=1073.741824, available_bytes=2.0 GB, full_token=1000000",
            1.0,
            1000000,
        ),
    ],
)
def test_pool_of_every_format(line: str, kv: float, tokens: int | None) -> None:
    rank = only(*LOADED, line, "Memory pool end. avail mem=30.00 GB")
    assert rank.kv == pytest.approx(kv, abs=0.001)
    assert rank.kv_tokens == tokens


def test_two_pools_of_one_model_are_added_and_the_drafts_is_its_own() -> None:
    rank = only(
        *LOADED,
        "full KV Cache is allocated. #tokens: 100, KV size: 3.00 GB",
        "swa KV Cache is allocated. #tokens: 10, KV size: 1.00 GB",
        "Memory pool end. avail mem=30.00 GB",
        "KV Cache is allocated. #tokens: 100, KV size: 0.50 GB",
        "Memory pool end. avail mem=29.50 GB",
    )
    assert (rank.kv, rank.draft_kv, rank.kv_tokens) == (4.0, 0.5, 100)


def test_state_cache_of_a_hybrid_model() -> None:
    line = (
        "Mamba Cache is allocated. max_mamba_cache_size: 4, conv_state size: 0.61GB, ssm_state size: 14.83GB "
        "intermediate_ssm_state_cache size: 1.00GB intermediate_conv_window_cache size: 0.50GB "
    )
    assert only(*LOADED, line).state_cache == pytest.approx(16.94)


def test_draft_heads_are_added_up() -> None:
    draft = ("Load weight begin. avail mem=50.00 GB", "Load weight end. type=D, avail mem=49.00 GB, mem usage=1.00 GB.")
    assert only(*LOADED, *draft, *draft).draft_weights == 2.0


def test_draft_that_comes_after_the_pool_is_not_counted_into_the_smallest_fraction() -> None:
    lines = [
        *LOADED,
        "KV Cache is allocated. #tokens: 100, KV size: 3.00 GB",
        "Memory pool end. avail mem=30.00 GB",
        "Load weight begin. avail mem=30.00 GB",
        "Load weight end. type=D, avail mem=29.00 GB, mem usage=1.00 GB.",
        "Scheduler hit an exception: Traceback (most recent call last):",
    ]
    stamped = [f"[2026-01-01 00:00:01 TP0] {line}" for line in lines]
    failed = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    assert diagnose_lines([*stamped, failed]).advice.min == pytest.approx(1 - 50 / 90, abs=0.001)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (
            "Capture cuda graph begin. This can take up to several minutes. avail mem=20.00 GB",
            "Capture cuda graph end. Time elapsed: 9.0 s. mem usage=1.25 GB. avail mem=18.75 GB.",
        ),
        (
            "Capture target verify CUDA graph begin. backend=full, num_tokens_per_bs=4, bs=[1, 8], avail mem=20.00 GB",
            "Capture target verify CUDA graph end. elapsed=9.00 s, mem usage=1.25 GB, avail mem=18.75 GB.",
        ),
    ],
)
def test_graphs_of_every_format(begin: str, end: str) -> None:
    rank = only(*LOADED, "Memory pool end. avail mem=21.00 GB", begin, end)
    assert rank.graphs == {"capture_target_verify": 1.25}
    assert (rank.capture_start, rank.left) == (20.0, 18.75)


def test_oldest_capture_tells_no_memory_and_begins_with_what_the_pool_left() -> None:
    begin = "Capture cuda graph begin. This can take up to several minutes."
    assert only(*LOADED, "Memory pool end. avail mem=21.00 GB", begin).capture_start == 21.0


def test_batch_sizes_and_tokens_of_a_capture() -> None:
    found = budget(
        *LOADED,
        "Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=4, bs=[1, 2, 8], avail mem=2.00 GB",
    )
    assert found.graph_batch_sizes == {"capture_target_verify": (1, 2, 8)}
    assert found.tokens_per_request == {"capture_target_verify": 4}


def test_draft_graphs_that_only_the_first_rank_prints_count_for_all() -> None:
    lines = [ARGUMENTS]
    for rank in ("TP10", "TP2", "TP0"):
        lines += [f"[2026-01-01 00:00:01 {rank}] {line}" for line in LOADED]
    stamp = "[2026-01-01 00:00:01 TP0] Capture draft cuda graph"
    lines += [
        f"{stamp} begin. This can take up to several minutes. avail mem=9.00 GB",
        f"{stamp} end. Time elapsed: 1.0 s. avail mem=8.0 GB. mem usage=1.00 GB.",
    ]
    ranks = diagnose_lines(lines).budget.ranks
    assert [rank.rank for rank in ranks] == ["TP0", "TP2", "TP10"]
    assert [rank.graphs for rank in ranks] == [{"capture_draft_decode": 1.0}] * 3


def test_segments_add_up_to_what_was_there_before_the_load() -> None:
    rank = only(
        *LOADED,
        "KV Cache is allocated. #tokens: 100, KV size: 20.00 GB",
        "Memory pool end. avail mem=29.00 GB",
        "Capture cuda graph begin. This can take up to several minutes. avail mem=28.00 GB",
        "Capture cuda graph end. Time elapsed: 9.0 s. mem usage=2.00 GB. avail mem=26.00 GB.",
    )
    segments = dict(rank.segments())
    assert sum(segments.values()) == pytest.approx(90.0)
    assert segments == pytest.approx({"weights": 40, "kv": 20, "capture_target_verify": 2, "other": 2, "left": 26})
