"""Bounds, margins and costs: against SGLang's own arithmetic, simulated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpgate.server.advise import advise
from mtpgate.server.arguments import LoggedArguments
from mtpgate.server.budget import Budget, RankBudget
from mtpgate.server.levers import Scene, graph_limit, levers, not_levers
from mtpgate.server.memory_facts import Load, MemoryFacts

NEW = LoggedArguments(
    "server_args=ServerArgs(cuda_graph_max_bs_decode=32, context_length=4096, chunked_prefill_size=8192)"
)


def capture_oom(
    fraction: float, *, before: float = 94.0, weights: float = 40.0, need: float = 30.0, loads: tuple[Load, ...] = ()
) -> tuple[MemoryFacts, float]:
    """A launch by SGLang's equations whose captures need ``need`` GiB in all, the last 3 of them in one request."""
    pool = before - weights - before * (1 - fraction)
    start = before - weights - pool
    assert start < need
    tried = 3.0
    free = start - (need - tried)
    rank = RankBudget("TP1", before, weights=weights, kv=pool, kv_tokens=int(pool * 100_000), capture_start=start)
    budget = Budget(fraction, graph_batch_sizes={"capture_target_verify": (1, 8, 16, 32)}, ranks=(rank,))
    facts = MemoryFacts(
        fraction, budget, rank, tried=tried, free=free, after_load=before - weights, capturing=32, loads=loads
    )
    return facts, 1 - need / before


def scene(kind: str = "oom_graph_capture", phase: str = "capture_target_verify", **more: object) -> Scene:
    return Scene(kind, phase, NEW, **more)  # type: ignore[arg-type]


@given(weights=st.floats(5.0, 80.0), pool=st.floats(0.01, 0.99), missing=st.floats(0.01, 2.99))
def test_advised_fraction_would_start_and_the_bound_is_the_true_one(
    weights: float, pool: float, missing: float
) -> None:
    before = 94.0
    fraction = (weights + pool * (before - weights)) / before
    need = before * (1 - fraction) + missing
    facts, truth = capture_oom(fraction, need=need, weights=weights)
    advice = advise(scene(), facts)
    least = weights / before
    if advice.max is None:
        assert truth <= 0
        return
    assert advice.max == pytest.approx(truth, abs=0.0006)
    if advice.suggested is None:
        assert truth - least < 0.011
        assert "No fraction works" in advice.text[0]
        return
    assert advice.suggested <= truth
    # The pool that is left is positive, and what is free covers what the captures need.
    assert before * (1 - advice.suggested) >= need
    assert advice.suggested > least
    assert advice.kv_tokens is not None
    assert advice.kv_tokens >= 0


def test_when_the_bounds_cross_no_fraction_is_suggested_and_the_next_lever_is_named() -> None:
    facts, _ = capture_oom(0.75, weights=68.0, need=28.0)
    advice = advise(scene(), facts)
    assert (advice.suggested, advice.graph_max_bs) == (None, 16)
    assert "No fraction works: what failed needs 0.702 or less, the weights alone more than 0.723." in advice.text[0]
    assert "--cuda-graph-max-bs-decode" in advice.text[0]
    assert advice.change == {"cuda_graph_max_bs": 16}


def test_smaller_graphs_are_tried_first_where_a_smaller_fraction_would_starve_a_workload() -> None:
    hungry = Load(16, 150_000)
    facts, _ = capture_oom(0.70, loads=(hungry,))
    advice = advise(scene(), facts)
    assert advice.kv_tokens is not None
    assert advice.kv_tokens < hungry.kv_tokens
    assert advice.change == {"cuda_graph_max_bs": 16}


def test_batch_limit_is_not_advised_where_the_largest_batch_was_captured() -> None:
    facts, _ = capture_oom(0.70)
    later = MemoryFacts(**{**facts.__dict__, "capturing": 8})
    advice = advise(scene(), later)
    assert advice.graph_max_bs is None
    assert "it failed at 8, after the larger ones" in " ".join(advice.text)


def test_prefill_capture_is_not_helped_by_the_decode_batch_limit() -> None:
    facts, _ = capture_oom(0.70)
    advice = advise(scene(phase="capture_prefill"), facts)
    assert advice.graph_max_bs is None
    assert "max-bs-decode" not in " ".join(advice.text)


def test_without_numbers_there_is_a_direction_and_no_bound() -> None:
    facts, _ = capture_oom(0.70)
    bare = MemoryFacts(facts.fraction, facts.budget, facts.rank)
    advice = advise(scene(), bare)
    assert (advice.mem_fraction_static, advice.max, advice.suggested) == ("lower", None, None)


@pytest.mark.parametrize(
    ("left", "least", "suggested"), [(38.01, 0.596, 0.61), (10.33, 0.891, 0.91), (1.0, 0.990, None)]
)
def test_pool_that_does_not_fit(left: float, least: float, suggested: float | None) -> None:
    rank = RankBudget("TP0", 94.03)
    advice = advise(scene("not_enough_memory", "kv_pool"), MemoryFacts(0.5, Budget(0.5), rank, after_load=left))
    assert (advice.mem_fraction_static, advice.min, advice.suggested) == ("raise", least, suggested)


def test_minimum_that_sglang_states_itself_counts_where_the_load_lines_are_lost() -> None:
    rank = RankBudget("TP0", 94.03)
    facts = MemoryFacts(0.5, Budget(0.5), rank, stated_minimum=0.6399)
    assert advise(scene("not_enough_memory", "kv_pool"), facts).min == 0.640


def test_serving_needs_room_for_the_request_that_failed() -> None:
    rank = RankBudget("TP0", 94.64, kv=25.68, kv_tokens=392_320, capture_start=6.0)
    facts = MemoryFacts(0.93, Budget(0.93), rank, tried=1.75, free=1.02, after_load=32.0)
    advice = advise(scene("oom_serving", "serving"), facts)
    assert (advice.max, advice.suggested) == (None, 0.91)
    assert advice.other == ("--chunked-prefill-size",)


def test_pool_that_is_capped_loses_nothing_to_a_smaller_fraction() -> None:
    rank = RankBudget("TP0", 21.85, kv=0.18, kv_tokens=16_384)
    facts = MemoryFacts(0.5, Budget(0.5), rank, tried=1.51, free=0.44, after_load=21.5, capped=True)
    advice = advise(scene("oom_serving", "warmup"), facts)
    assert (advice.kv_tokens, advice.kv_tokens_lost) == (16_384, 0)
    assert "This costs no KV tokens: the pool stays at 16,384." in " ".join(advice.text)


@pytest.mark.parametrize(
    ("kind", "phase", "frame", "flags"),
    [
        ("kernel_unsupported", "capture_target_verify", "layers/moe/moe_runner/deep_gemm.py", "--moe-runner-backend"),
        ("kernel_unsupported", "capture_draft_extend", "attention/flashattention_backend.py", "--attention-backend"),
        ("oom_serving", "serving", "model_runner.py in forward_decode", "--max-running-requests"),
        ("oom_serving", "serving", "model_runner.py in forward_extend", "--chunked-prefill-size"),
        ("child_died", "capture_target_decode", "layers/attention/flashinfer_backend.py", "--attention-backend"),
        ("host_oom_killed", "weight_load", "", ""),
    ],
)
def test_levers_follow_where_it_happened(kind: str, phase: str, frame: str, flags: str) -> None:
    found = levers(Scene(kind, phase, LoggedArguments(), frames=(frame,)))  # type: ignore[arg-type]
    assert flags in (found or ("",))


def test_only_flags_that_this_sglang_has_are_named() -> None:
    old = LoggedArguments("server_args=ServerArgs(cuda_graph_max_bs=8, chunked_prefill_size=8192)")
    assert graph_limit(old) == "--cuda-graph-max-bs"
    assert graph_limit(NEW) == "--cuda-graph-max-bs-decode"
    kernels = Scene("kernel_unsupported", "serving", old, frames=("deep_gemm.py",))
    assert levers(kernels) == ()


def test_misspelled_flag_is_answered_with_the_one_that_exists() -> None:
    text = "launch_server.py: error: unrecognized arguments: --speculative-num-draft-token 2"
    usage = ("--speculative-num-steps", "--speculative-num-draft-tokens", "--tp-size")
    found = levers(Scene("bad_argument", "preflight", LoggedArguments(), text=text, usage=usage))
    assert found == ("--speculative-num-draft-tokens",)
    both = "--cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill"
    text = f"error: ambiguous option: --cuda-graph-max-bs could match {both}"
    found = levers(Scene("bad_argument", "preflight", LoggedArguments(), text=text))
    assert found == ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs-prefill")


def test_a_kernel_gap_is_never_answered_with_memory() -> None:
    wrong = not_levers(Scene("kernel_unsupported", "capture_target_decode", NEW))
    assert {"lower mem_fraction_static", "lower cuda_graph_max_bs", "disable cuda graph"} <= set(wrong)


@pytest.mark.parametrize("text", ["server_args=ServerArgs({})", "server_args={{{}}}"])
def test_logged_arguments_of_both_forms(text: str) -> None:
    listed = "model_path='/m, x', tp_size=4, mem_fraction_static=0.7, trust=True, nothing=None, bs=[1, 2], last=9"
    if "{{" in text:
        listed = (
            listed.replace("=", "': ").replace(", ", ", '").replace("'/m, 'x'", "'/m, x'").replace("[1, '2]", "[1, 2]")
        )
        listed = "'" + listed
    told = LoggedArguments(text.format(listed))
    assert told.get("model_path") == "/m, x"
    assert (told.get("tp_size"), told.get("mem_fraction_static"), told.get("last")) == (4, 0.7, 9)
    assert (told.get("trust"), told.get("nothing"), told.get("absent")) == (True, None, None)
    assert told.get("bs") == "[1, 2]"
    assert told.knows("--tp-size")
    assert not told.knows("--p-size")
