"""Log lines of twelve versions become phases."""

from __future__ import annotations

import pytest

from mtpgate.server.phases import PhaseTracker, Timeline
from mtpgate.server.records import records

EAGLE_ARGS = "[2025-06-01 00:00:00] server_args=ServerArgs(model_path='m', speculative_algorithm='EAGLE', tp_size=1)"
PLAIN_ARGS = "[2025-06-01 00:00:00] server_args=ServerArgs(model_path='m', speculative_algorithm=None, tp_size=1)"
STAMP = "[2025-06-01 00:00:01 TP0] "
LOADED = ["Load weight begin. avail mem=90.00 GB", "Load weight end. type=T, dtype=d, avail mem=50.00 GB"]


def track(*lines: str) -> PhaseTracker:
    tracker = PhaseTracker()
    for line in lines:
        tracker.feed(line)
    return tracker


def phases(timeline: Timeline) -> list[str]:
    return [span.phase for span in timeline.phases]


@pytest.mark.parametrize(
    ("arguments", "text", "phase"),
    [
        (PLAIN_ARGS, "Init torch distributed begin.", "dist_init"),
        (PLAIN_ARGS, "Init parallel begin.", "dist_init"),
        (PLAIN_ARGS, "Load weight begin. avail mem=94.19 GB", "weight_load"),
        (PLAIN_ARGS, "KV Cache is allocated. K size: 9.13 GB, V size: 9.13 GB.", "kv_pool"),
        (PLAIN_ARGS, "KV Cache is allocated. #tokens: 515648, KV size: 33.75 GB", "kv_pool"),
        (
            PLAIN_ARGS,
            "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1, K size: 1.00 GB, V size: 1.00 GB",
            "kv_pool",
        ),
        (PLAIN_ARGS, "full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 1, KV size: 1.00 GB", "kv_pool"),
        (PLAIN_ARGS, "Mamba Cache is allocated. max_mamba_cache_size: 1, conv_state size: 0.10GB", "kv_pool"),
        (PLAIN_ARGS, "DSV4 memory calculation: bytes_per_full_token=7391.25, available_bytes=20.47 GB", "kv_pool"),
        (PLAIN_ARGS, "Memory pool end. avail mem=3.64 GB", "kv_pool"),
        (PLAIN_ARGS, "Capture cuda graph begin. This can take up to several minutes.", "capture_target_decode"),
        (
            EAGLE_ARGS,
            "Capture cuda graph begin. This can take up to several minutes. avail mem=3.14 GB",
            "capture_target_verify",
        ),
        (
            EAGLE_ARGS,
            "Capture draft cuda graph begin. This can take up to several minutes. avail mem=3 GB",
            "capture_draft_decode",
        ),
        (EAGLE_ARGS, "Capture Frozen-KV MTP draft cuda graph begin.", "capture_draft_decode"),
        (
            EAGLE_ARGS,
            "Capture draft extend cuda graph begin. This can take up to several minutes.",
            "capture_draft_extend",
        ),
        (
            EAGLE_ARGS,
            "Capture draft extend cuda graph begin (step 2). This can take up to several",
            "capture_draft_extend",
        ),
        (PLAIN_ARGS, "Capture piecewise CUDA graph begin. avail mem=3.14 GB", "capture_prefill"),
        (PLAIN_ARGS, "Capture target prefill CUDA graph begin. backend=breakable, num_tokens=[4]", "capture_prefill"),
        (
            PLAIN_ARGS,
            "Capture target decode CUDA graph begin. backend=full, num_tokens_per_bs=1",
            "capture_target_decode",
        ),
        (
            EAGLE_ARGS,
            "Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=2",
            "capture_target_verify",
        ),
        (EAGLE_ARGS, "Capture draft decode CUDA graph begin. backend=full", "capture_draft_decode"),
        (EAGLE_ARGS, "Capture draft extend CUDA graph begin. backend=full, step=1", "capture_draft_extend"),
        (EAGLE_ARGS, "Capture single-CG draft extend begin", "capture_draft_extend"),
        (PLAIN_ARGS, "Capture target decode CPU graph begin. backend=full", "capture_target_decode"),
        (PLAIN_ARGS, "max_total_num_tokens=1741, chunked_prefill_size=8192, available_gpu_mem=59.22 GB", "warmup"),
        (PLAIN_ARGS, "The server is fired up and ready to roll!", "ready"),
    ],
)
def test_line_begins_its_phase(arguments: str, text: str, phase: str) -> None:
    assert track(arguments, STAMP + text).current == phase


def test_second_load_of_a_rank_is_the_drafts() -> None:
    tracker = track(*(STAMP + text for text in [*LOADED, *LOADED]))
    assert phases(tracker.timeline()) == ["preflight", "weight_load", "draft_load"]


def test_loads_of_two_ranks_are_both_the_targets() -> None:
    ranks = ("[2025-06-01 00:00:01 TP0] ", "[2025-06-01 00:00:01 TP1] ")
    tracker = track(*(rank + text for text in LOADED for rank in ranks))
    assert phases(tracker.timeline()) == ["preflight", "weight_load"]


def test_one_text_for_all_captures_is_told_by_the_loads() -> None:
    begin = STAMP + "Capture cuda graph begin. This can take up to several minutes."
    end = STAMP + "Capture cuda graph end. Time elapsed: 8.99 s"
    loaded = [STAMP + text for text in LOADED]
    tracker = track(EAGLE_ARGS, *loaded, begin, end, *loaded, begin, end)
    assert phases(tracker.timeline())[1:] == [
        "weight_load",
        "capture_target_verify",
        "draft_load",
        "capture_draft_decode",
    ]


def test_server_args_as_a_dictionary_tell_the_speculation_too() -> None:
    line = "[2025-06-01 00:00:00] server_args={'model_path': 'm', 'speculative_algorithm': 'EAGLE'}"
    assert track(line).speculative is True


def test_memory_and_seconds_are_read_in_any_order() -> None:
    tracker = PhaseTracker()
    tracker.feed(STAMP + "Capture draft cuda graph begin. avail mem=9.00 GB")
    end = tracker.feed(
        STAMP + "Capture draft cuda graph end. Time elapsed: 4.50 s. avail mem=8.25 GB. mem usage=0.75 GB."
    )
    assert (end[0].elapsed_seconds, end[0].available_gib, end[0].usage_gib) == (4.5, 8.25, 0.75)
    end = tracker.feed(
        STAMP + "Capture draft extend CUDA graph end. elapsed=1.25 s, mem usage=0.50 GB, avail mem=7.75 GB."
    )
    assert (end[0].elapsed_seconds, end[0].available_gib, end[0].usage_gib) == (1.25, 7.75, 0.5)


def test_line_behind_a_progress_bar_counts() -> None:
    bar = "Capturing batches (bs=32 avail_mem=28.23 GB):   0%|          | 0/8 [00:00<?, ?it/s]"
    assert track(bar + STAMP + "Memory pool end. avail mem=1.00 GB").current == "kv_pool"


def test_colours_wrappers_and_carriage_returns_are_no_hindrance() -> None:
    line = (
        "server-1  | \x1b[32mLoading: 3%\r\x1b[0m[2025-06-01 00:00:01.123 DP0 TP0] \x1b[1mInit parallel begin.\x1b[0m"
    )
    tracker = track(line)
    assert tracker.current == "dist_init"
    assert tracker.ranks() == {"DP0 TP0"}


def test_record_knows_its_rank() -> None:
    (record,) = records("[2026-08-24 09:20:22 DP2 PP1 ATTN_CP0 TP3 EP4] hello")
    assert (record.rank, record.text) == ("DP2 PP1 ATTN_CP0 TP3 EP4", "hello")


def test_times_come_from_the_log_without_a_clock() -> None:
    tracker = track(
        "[2025-06-01 00:00:00] server_args=ServerArgs()",
        "[2025-06-01 00:00:05 TP0] Load weight begin. avail mem=90.00 GB",
        "[2025-06-01 00:00:07 TP1] Load weight begin. avail mem=89.00 GB",
        "[2025-06-01 00:01:05 TP0] Load weight end. type=T, avail mem=50.00 GB, mem usage=40.00 GB.",
        "[2025-06-01 00:01:09 TP1] Load weight end. type=T, avail mem=48.00 GB, mem usage=41.00 GB.",
    )
    span = tracker.timeline().find("weight_load")
    assert span is not None
    assert (span.begin_seconds, span.end_seconds, span.seconds) == (5.0, 69.0, 64.0)
    assert (span.memory_before_gib, span.memory_after_gib, span.usage_gib) == (89.0, 48.0, 41.0)


def test_given_clock_wins_over_the_log() -> None:
    tracker = PhaseTracker()
    tracker.feed("[2025-06-01 00:00:05] Init parallel begin.", 12.5)
    assert tracker.current_since == 12.5


def test_phase_without_an_end_stays_open() -> None:
    span = track(STAMP + LOADED[0]).timeline().find("weight_load")
    assert span is not None
    assert span.end_seconds is None


def test_ready_ends_the_warmup_of_the_schedulers() -> None:
    tracker = track(
        "[2025-06-01 00:00:00 TP0] max_total_num_tokens=1, chunked_prefill_size=1",
        "[2025-06-01 00:00:03] The server is fired up and ready to roll!",
    )
    span = tracker.timeline().find("warmup")
    assert span is not None
    assert span.end_seconds == 3.0


@pytest.mark.parametrize("line", ["", "\x00\xff", "[", "[2025-13-45 99:99:99 TP0] Load weight", "]" * 999, "Capture "])
def test_nonsense_is_no_phase_and_no_error(line: str) -> None:
    assert track(line, line + "\r" + line).current == "preflight"


def test_impossible_date_does_not_hide_a_phase() -> None:
    assert track("[2025-13-45 99:99:99 TP0] Load weight begin. avail mem=x GB").current == "weight_load"
