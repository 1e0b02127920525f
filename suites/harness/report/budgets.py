"""Memory budgets of launches, good and bad. That of a capture that ran out of memory is of a real deployment: TP 4,
94.21 GiB before the load, fraction 0.70; the failing rank asked for 7.50 GiB with 2.30 GiB free."""

from __future__ import annotations

from dataclasses import replace

from mtpgate.server.budget import Budget, RankBudget

_LOADED = RankBudget(
    rank="TP0",
    before_load=94.21,
    weights=43.62,
    draft_weights=1.83,
    kv=20.45,
    kv_tokens=2_970_624,
    capture_start=28.28,
    left=28.28,
)
FAILED = replace(_LOADED, rank="TP1", left=2.30, wanted=7.50, total=94.97)
CAPTURE_OOM = Budget(
    fraction=0.70,
    max_total_num_tokens=2_970_624,
    ranks=(
        _LOADED,
        FAILED,
        replace(_LOADED, rank="TP2", before_load=94.24, left=28.31, capture_start=28.31),
        replace(_LOADED, rank="TP3"),
    ),
)
_CAPTURED = RankBudget(
    rank="TP0",
    before_load=94.21,
    weights=43.62,
    draft_weights=1.83,
    kv=10.40,
    draft_kv=0.68,
    kv_tokens=1_510_000,
    capture_start=37.60,
    graphs={"capture_target_verify": 21.40, "capture_draft_decode": 1.10, "capture_draft_extend": 2.25},
    left=11.90,
)
HEALTHY_EAGLE = Budget(
    fraction=0.60,
    max_total_num_tokens=1_510_000,
    ranks=tuple(replace(_CAPTURED, rank=f"TP{rank}", left=11.93 - rank * 0.01) for rank in range(4)),
)
HEALTHY_REFERENCE = Budget(
    fraction=0.60,
    max_total_num_tokens=1_820_000,
    ranks=tuple(
        RankBudget(
            rank=f"TP{rank}",
            before_load=94.21,
            weights=43.62,
            kv=12.90,
            kv_tokens=1_820_000,
            graphs={"capture_prefill": 3.4, "capture_target_decode": 6.2},
            left=27.10,
        )
        for rank in range(4)
    ),
)
UNEVEN = replace(
    HEALTHY_EAGLE,
    draft_counted=False,
    ranks=tuple(replace(_CAPTURED, rank=f"DP{rank} TP{rank}", left=11.90 - rank % 2, kv=10.40) for rank in range(4)),
)
CPU = Budget(
    fraction=0.5,
    max_total_num_tokens=16_384,
    ranks=(RankBudget(rank=None, before_load=21.85, weights=0.32, kv=0.18, kv_tokens=16_384, left=21.31),),
)
CPU_EAGLE = replace(
    CPU,
    ranks=(
        RankBudget(
            rank=None,
            before_load=21.85,
            weights=0.32,
            draft_weights=0.03,
            kv=0.18,
            draft_kv=0.02,
            kv_tokens=16_384,
            left=21.29,
        ),
    ),
)
FORECAST = {
    "from_cell": "no-mtp",
    "fits": False,
    "predicted": {
        "weights": 43.62,
        "draft_weights": 1.83,
        "kv": 20.50,
        "capture_target_verify": 30.10,
        "other": 0.0,
        "left": -1.84,
    },
    "left_gib": -1.84,
    "text": "The verify graphs of batch 32 need about 30.10 GiB, and 28.26 GiB are left for them.",
}
ADVICE = {
    "mem_fraction_static": "lower",
    "max": 0.645,
    "min": None,
    "other": ["--cuda-graph-max-bs-decode", "--context-length"],
    "suggested": 0.60,
    "margin_gib": 4.2,
    "graph_max_bs": 16,
    "kv_tokens": 1_609_000,
    "kv_tokens_lost": 1_361_624,
    "change": {"mem_fraction_static": 0.60},
    "text": [
        "Lower `--mem-fraction-static` to 0.60: at 0.645 the verify graphs just fit, and 0.60 leaves 4.2 GiB more.",
        "Or keep 0.70 and lower `--cuda-graph-max-bs-decode` to 16, which should free about 13 GiB.",
    ],
}
