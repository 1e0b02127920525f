"""Logs with a known verdict, and logs that are no logs."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtpgate.server.diagnose import diagnose_file, diagnose_lines
from mtpgate.server.diagnosis import Diagnosis

CASES = Path(__file__).parent / "cases"
NAMES = sorted(path.stem for path in CASES.glob("*.json"))
SEED = "seed_mtp_capture_oom"

SAYS = {
    "lower mem_fraction_static": r"[Ll]ower --mem-fraction-static",
    "raise mem_fraction_static": r"[Rr]aise --mem-fraction-static",
    "lower cuda_graph_max_bs": r"--cuda-graph-max-bs(-decode)?\b(?!-prefill)",
    "GPU out of memory": r"GPU out of memory|weights do not fit",
    "host RAM": r"[Hh]ost memory|host ran out",
    "custom all reduce": r"all.reduce",
    "buy more GPUs": r"more GPUs|--tp-size",
    "disable cuda graph": r"--disable-cuda-graph\b",
    "disable cuda graph as first choice": r"--disable-cuda-graph\b",
    "reinstall sglang": r"[Rr]einstall|[Uu]pgrade",
    "upgrade transformers": r"transformers",
    "network fault": r"network|NCCL",
    "NCCL is broken": r"NCCL",
    "kernel missing": r"kernels? is not available",
    "lower context length only": r"--context-length",
    "--model-path": r" --model-path",
    "remove --enable-nan-detection": r"nan-detection",
    "raise the start time-out": r"more time|time-?out",
    "hang": r"\bhang\b|nothing more happened",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True": r"with expandable|expandable_segments:True",
    "PYTORCH_ALLOC_CONF=expandable_segments alone": r"expandable",
    "SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK": r"INBALANCE",
}
"""How each thing that is wrong to say would read in our own sentences."""


def load(name: str) -> tuple[list[str], dict[str, Any]]:
    expected = json.loads((CASES / f"{name}.json").read_text())
    # Not read_text(): it would end lines at the carriage returns of progress bars.
    return (CASES / f"{name}.log").read_bytes().decode("utf-8", "replace").split("\n"), expected


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> tuple[Diagnosis, dict[str, Any]]:
    expected = json.loads((CASES / f"{request.param}.json").read_text())
    return diagnose_file(CASES / f"{request.param}.log", expected["context"]), expected


def test_case_has_its_verdict(case: tuple[Diagnosis, dict[str, Any]]) -> None:
    found, expected = case
    assert (found.phase, found.kind, found.rank) == (expected["phase"], expected["kind"], expected["rank"])


def test_case_has_its_numbers(case: tuple[Diagnosis, dict[str, Any]]) -> None:
    found, expected = case
    wanted = dict(expected["numbers"])
    graphs = wanted.pop("graphs", {})
    # Sums of two figures that the log rounds to two digits each.
    assert {key: found.numbers.get(key) for key in wanted} == pytest.approx(wanted, abs=0.0101)
    shown = found.numbers.get("graphs", {})
    assert isinstance(shown, dict)
    assert {key: shown.get(key) for key in graphs} == pytest.approx(graphs, abs=0.0101)


def test_case_has_its_advice(case: tuple[Diagnosis, dict[str, Any]]) -> None:
    found, expected = case
    advice, wanted = found.advice, expected["advice"]
    assert advice.mem_fraction_static == wanted["mem_fraction_static"]
    assert (advice.max is None, advice.min is None) == (wanted["max"] is None, wanted["min"] is None)
    assert (advice.max or 0) == pytest.approx(wanted["max"] or 0, abs=0.005)
    assert (advice.min or 0) == pytest.approx(wanted["min"] or 0, abs=0.005)
    assert set(advice.other) == set(wanted["other"])


def test_case_says_nothing_that_is_wrong_there(case: tuple[Diagnosis, dict[str, Any]]) -> None:
    found, expected = case
    sentence = found.summary.partition(" (")[0]  # What follows is the log's own line.
    said = "\n".join((sentence, *found.advice.text, *found.advice.other))
    for wrong in expected["not_advice"]:
        assert re.search(SAYS[wrong], said) is None, f"{wrong}: {said}"


def test_no_line_of_a_known_format_is_reported_as_unknown(case: tuple[Diagnosis, dict[str, Any]]) -> None:
    assert case[0].unmatched == ()


def test_evidence_is_in_the_log(case: tuple[Diagnosis, dict[str, Any]]) -> None:
    found, expected = case
    lines, _ = load(expected["id"])
    assert found.evidence
    for item in found.evidence:
        assert item.text[:40] in lines[item.line - 1]


def test_what_is_advised_is_within_its_bounds(case: tuple[Diagnosis, dict[str, Any]]) -> None:
    advice = case[0].advice
    if advice.suggested is not None:
        assert advice.max is None or advice.suggested <= advice.max
        assert advice.min is None or advice.suggested >= advice.min
        assert advice.change in ({"mem_fraction_static": advice.suggested}, {"cuda_graph_max_bs": advice.graph_max_bs})


def test_first_failed_launch_of_a_deployment_is_told_to_its_end() -> None:
    found = diagnose_file(CASES / f"{SEED}.log", load(SEED)[1]["context"])
    assert (found.kind, found.phase, found.rank) == ("oom_graph_capture", "capture_target_verify", "TP1")
    assert found.advice.suggested == 0.60
    said = " ".join(found.advice.text)
    assert "the largest that can work is 0.645 (1 - (28.28 - 2.30 + 7.50) / 94.21, GiB)" in said
    assert found.advice.graph_max_bs == 16
    assert "16 still covers C=1 and C=16" in said
    # 9.42 GiB less of a pool of 20.45 GiB for 2,970,624 tokens.
    assert found.advice.kv_tokens == pytest.approx(2_970_624 * (1 - 9.421 / 20.448), rel=0.001)
    assert "KV for 1 x 512 tokens and 16 x 512 tokens (the suite's usual loads) still fits" in said
    told = {rank.rank: (rank.wanted, rank.left) for rank in found.budget.ranks}
    assert (told["TP1"], told["TP3"], told["TP0"]) == ((7.5, 2.3), (7.5, 2.34), (None, 28.24))


def test_workloads_of_the_cell_that_would_lose_their_graphs_are_named() -> None:
    context = load(SEED)[1]["context"] | {
        "workloads": [{"concurrency": 24, "input_tokens": 200_000, "output_tokens": 1}]
    }
    said = " ".join(diagnose_file(CASES / f"{SEED}.log", context).advice.text)
    assert "C=24 would fall out of the graphs and decode eagerly" in said
    assert "KV for 24 x 200,001 tokens DOES NOT FIT any more" in said


@pytest.mark.parametrize(
    ("wrapper", "rank"),
    [
        ("llm0-1  | ", "TP1"),
        ("(SGLangWorker pid=123, ip=10.0.0.1) ", "TP1"),
        ("2026-07-21T13:40:02.123456789Z stderr F ", "TP1"),
        ("Jul 21 13:40:02 host sglang[123]: ", "TP1"),
        ("[INFO launcher.py:33] ", "TP1"),
        ("[2025-12-18T16:24:02+08:00] a-job-20251218-x7 >> (SGLangEngine pid=3111) ", "TP1"),
        ("\x1b[1;32m", "TP1"),
    ],
)
def test_what_another_program_writes_in_front_changes_nothing(wrapper: str, rank: str) -> None:
    lines, expected = load(SEED)
    plain, wrapped = (diagnose_lines(told, expected["context"]) for told in (lines, [wrapper + line for line in lines]))
    assert (wrapped.phase, wrapped.kind, wrapped.rank) == (plain.phase, plain.kind, rank)
    assert (wrapped.numbers, wrapped.advice) == (plain.numbers, plain.advice)


def test_without_prefixes_four_ranks_count_once() -> None:
    lines, expected = load(SEED)
    stripped = [re.sub(r"\[\d{4}-[^\]]*\] ?", "", line) for line in lines]
    found = diagnose_lines(stripped, expected["context"])
    assert (found.phase, found.kind, found.rank) == ("capture_target_verify", "oom_graph_capture", None)
    assert (found.numbers["weights"], found.numbers["draft_weights"]) == (43.62, 1.83)
    assert found.advice.max == pytest.approx(0.645, abs=0.005)


def test_when_the_begin_is_cut_off_the_frames_tell_the_phase() -> None:
    lines, expected = load(SEED)
    found = diagnose_lines(lines[-120:], expected["context"])
    assert (found.phase, found.kind) == ("capture_target_verify", "oom_graph_capture")


def test_hint_below_a_failed_capture_is_no_cause() -> None:
    lines = [
        "[2026-07-21 13:41:38 TP1] Capture target verify CUDA graph begin. backend=full, avail mem=28.28 GB",
        "[2026-07-21 13:41:46 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "decode_cuda_graph_runner.py", line 363, in __init__',
        "Exception: Capture cuda graph failed: no kernel image is available for execution on the device",
        "Possible solutions:",
        "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
    ]
    diagnosis = diagnose_lines(lines)
    assert diagnosis.kind == "kernel_unsupported"
    assert diagnosis.advice.mem_fraction_static is None
    assert "lower mem_fraction_static" in diagnosis.not_advice


def test_tuner_that_runs_out_of_memory_is_no_death() -> None:
    line = "autotuner.py - Skipping tactic due to failure while profiling: torch.OutOfMemoryError: CUDA out of memory."
    ready = "[2026-07-21 13:41:38] The server is fired up and ready to roll!"
    assert diagnose_lines([line, ready]).kind == "ok"


READY = "[2026-07-21 13:41:38] The server is fired up and ready to roll!"
REQUEST_FAILED = [
    "[2026-07-21 13:42:00] Traceback (most recent call last):",
    '  File "tokenizer_manager.py", line 3, in check',
    "ValueError: The input is longer than the model's context",
]


def test_an_exception_of_a_request_does_not_condemn_a_server_that_lives() -> None:
    assert diagnose_lines([READY, *REQUEST_FAILED]).kind == "ok"
    assert diagnose_lines([READY, *REQUEST_FAILED], {"exit_code": -9}).kind == "unknown"
    sigquit = "[2026-07-21 13:42:01] SIGQUIT received. signum=None, frame=None. It usually means one child failed."
    assert diagnose_lines([READY, *REQUEST_FAILED, sigquit]).kind == "unknown"


def test_a_flood_of_harmless_errors_does_not_hide_the_one_that_kills() -> None:
    flood = REQUEST_FAILED * 5000
    killed = [
        "[2026-07-21 13:50:00 TP2] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "scheduler.py", line 9, in event_loop_overlap',
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 4 has a total capacity of 95 GiB",
    ]
    found = diagnose_lines([READY, *flood, *killed], {"exit_code": -9})
    assert (found.kind, found.rank, found.phase) == ("oom_serving", "TP2", "serving")


def test_a_phase_of_an_sglang_that_is_not_known_yet_is_reported() -> None:
    line = "[2027-01-01 00:00:00 TP0] Capture hologram CUDA graph begin. avail mem=12.00 GB"
    assert [item.text for item in diagnose_lines([line]).unmatched] == [line.partition("] ")[2]]


def test_empty_log_is_unknown() -> None:
    assert diagnose_lines([]).kind == "unknown"


MORE = Path(__file__).parent / "more_cases"
"""Logs of our own making in SGLang's formats. A value with a bar has several right answers."""


@pytest.mark.parametrize("name", sorted(path.stem for path in MORE.glob("*.json")))
def test_further_log_has_its_verdict_numbers_and_advice(name: str) -> None:
    expected = json.loads((MORE / f"{name}.json").read_text())
    found = diagnose_file(MORE / f"{name}.log", expected["context"])
    for key in ("phase", "kind", "rank"):
        assert str(getattr(found, key)) in str(expected[key]).split("|"), key
    wanted = dict(expected["numbers"])
    graphs = wanted.pop("graphs", {})
    assert {key: found.numbers.get(key) for key in wanted} == pytest.approx(wanted, abs=0.0111)
    shown = found.numbers.get("graphs", {})
    assert isinstance(shown, dict)
    assert {key: shown.get(key) for key in graphs} == pytest.approx(graphs, abs=0.0111)
    advice, right = found.advice, expected["advice"]
    assert advice.mem_fraction_static == right["mem_fraction_static"]
    assert (advice.max, advice.min) == (
        pytest.approx(right["max"], abs=0.0051) if right["max"] is not None else None,
        pytest.approx(right["min"], abs=0.0051) if right["min"] is not None else None,
    )
    for flag in right["other"]:
        assert set(flag.split("|")) & set(advice.other), flag


def whole(found: Diagnosis) -> None:
    assert found.summary
    assert all(item.line > 0 or item.text == "" for item in found.evidence)


@pytest.mark.parametrize("seed", range(20))
def test_broken_logs_never_raise(seed: int) -> None:
    generator = random.Random(seed)
    log = CASES / f"{generator.choice(NAMES)}.log"
    data = bytearray(log.read_bytes())
    for _ in range(200):
        data[generator.randrange(len(data))] = generator.randrange(256)
    lines = bytes(data[: generator.randrange(len(data))]).decode("utf-8", "replace").split("\n")
    generator.shuffle(lines)
    whole(diagnose_lines(lines, {"exit_code": -9}))


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "oom" in json.loads((CASES / f"{name}.json").read_text())["kind"]]
)
@pytest.mark.parametrize(
    "context",
    [
        {"mem_fraction_static": float("nan")},
        {"mem_fraction_static": float("inf"), "gpu_total_gib": float("-inf")},
        {"mem_fraction_static": 1e308, "workloads": [{"concurrency": 1e300, "input_tokens": 1, "output_tokens": 1}]},
        {
            "mem_fraction_static": -1,
            "gpu_total_gib": 0,
            "tp": "four",
            "speculative": {"num_draft_tokens": [], "topk": {}},
        },
        {"workloads": [{"concurrency": float("nan"), "input_tokens": None, "output_tokens": "x"}, 3, None]},
    ],
)
def test_a_context_that_is_none_changes_no_verdict(name: str, context: dict[str, object]) -> None:
    right = json.loads((CASES / f"{name}.json").read_text())
    found = diagnose_file(CASES / f"{name}.log", {**context, "speculative": right["context"]["speculative"]})
    assert (found.phase, found.kind) == (right["phase"], right["kind"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_get_a_diagnosis(tmp_path: Path, data: st.DataObject) -> None:
    """Cut anywhere, flipped, interleaved between logs, with binary in between, and with any context."""
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2))
    pieces = [(CASES / f"{name}.log").read_bytes() for name in names]
    cuts = [data.draw(st.tuples(st.integers(0, len(piece)), st.integers(0, len(piece)))) for piece in pieces]
    parts = [piece[min(cut) : max(cut)].split(b"\n") for piece, cut in zip(pieces, cuts, strict=True)]
    mixed = [line for pair in zip(*parts, strict=False) for line in pair] if len(parts) > 1 else parts[0]
    mixed.insert(data.draw(st.integers(0, len(mixed))), data.draw(st.binary(max_size=300)))
    log = tmp_path / "a.log"
    log.write_bytes(b"\n".join(mixed))
    anything = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers())
    )
    keys = ("mem_fraction_static", "cuda_graph_max_bs", "speculative", "exit_code", "timed_out", "workloads", "tp")
    context = {key: data.draw(anything) for key in keys}
    whole(diagnose_file(log, context))
