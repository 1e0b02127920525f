"""The words for phases, kinds of failure and checks, in matrices, waivers, diagnoses and reports: a contract."""

from __future__ import annotations

from typing import Literal

Phase = Literal[
    "preflight",
    "dist_init",
    "weight_load",
    "draft_load",
    "kv_pool",
    "capture_prefill",
    "capture_target_decode",
    "capture_target_verify",
    "capture_draft_decode",
    "capture_draft_extend",
    "warmup",
    "serving",
    "ready",
]
Kind = Literal[
    "ok",
    "oom_weights",
    "oom_draft_weights",
    "not_enough_memory",
    "oom_graph_capture",
    "oom_serving",
    "kv_pool_small",
    "kv_exhausted",
    "kernel_unsupported",
    "custom_all_reduce",
    "collective_timeout",
    "illegal_memory_access",
    "host_oom_killed",
    "child_died",
    "port_in_use",
    "bad_argument",
    "gpu_occupied",
    "draft_checkpoint",
    "nan_logits",
    "watchdog",
    "hang",
    "slow_compile",
    "unknown",
]
Check = Literal["startup", "parity", "acceptance", "throughput", "serving"]
