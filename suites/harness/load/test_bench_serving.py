"""Result files of ``sglang.bench_serving``: what is read, what is refused, and that ours read back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from mtpgate.errors import UsageError
from mtpgate.load.bench_serving import read_bench_serving, write_bench_serving
from mtpgate.load.measure import summarise
from mtpgate.load.measurement import Arrival, Measurement, Repeat, RequestRecord
from mtpgate.matrix.cell import Workload

RECORDED = Path(__file__).parent / "recorded" / "bench_serving.jsonl"

LINE = {
    "tag": None,
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": math.inf,
    "max_concurrency": 2,
    "server_info": {"version": "0.5.23", "model_path": "m"},
    "duration": 4.0,
    "completed": 4,
    "total_input_tokens": 128,
    "total_output_tokens": 200,
    "output_throughput": 50.0,
    "median_ttft_ms": 120.0,
    "median_tpot_ms": 18.0,
    "accept_length": 1.7,
}


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def without(key: str) -> dict[str, object]:
    return {name: value for name, value in LINE.items() if name != key}


def test_a_run_reads_with_its_figures_in_seconds(tmp_path):
    (run,) = read_bench_serving(written(tmp_path / "r.jsonl", LINE))
    assert (run.concurrency, run.requests, run.accept_length, run.void) == (2, 4, 1.7, None)
    assert (run.ttft_p50_seconds, run.tpot_p50_seconds) == (0.12, 0.018)
    assert (run.pass_tokens_per_second, run.total_tokens_per_second) == (50.0, 82.0)
    assert (run.sglang_version, run.source) == ("0.5.23", f"{tmp_path / 'r.jsonl'}, line 1")
    assert (run.input_tokens, run.output_tokens) == (None, None)


def test_details_tell_the_lengths_of_the_requests(tmp_path):
    (run,) = read_bench_serving(
        written(tmp_path / "r.jsonl", LINE | {"input_lens": [32] * 4, "output_lens": [50, 50, 50, 49]})
    )
    assert (run.input_tokens, run.output_tokens) == (32, None)


@pytest.mark.parametrize("key", ["tag", "server_info", "accept_length", "dataset_name"])
def test_keys_that_older_versions_do_not_write_are_not_missed(tmp_path, key):
    (run,) = read_bench_serving(written(tmp_path / "r.jsonl", without(key)))
    assert run.void is None


def test_several_runs_of_one_file_keep_their_order(tmp_path):
    runs = read_bench_serving(written(tmp_path / "r.jsonl", LINE, "", LINE | {"max_concurrency": 4}))
    assert [(run.concurrency, run.source.rpartition(" ")[2]) for run in runs] == [(2, "1"), (4, "3")]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"errors": ["", "boom", "", ""]}, "1 of 4 requests failed"),
        ({"completed": 0, "total_output_tokens": 0}, "no request was completed"),
        ({"request_rate": 4.0}, "at a rate \\(4.0/s\\), not as a closed loop"),
        ({"request_rate": "trace"}, "at a rate \\(trace/s\\)"),
        ({"max_concurrency": None}, "no --max-concurrency"),
        ({"max_concurrency": 9}, "4 requests cannot keep 9 clients busy"),
    ],
)
def test_a_run_that_is_no_closed_loop_is_void(tmp_path, change, words):
    import re

    (run,) = read_bench_serving(written(tmp_path / "r.jsonl", LINE | change))
    assert re.search(words, run.void)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: a JSON list, not an object"),
        (without("output_throughput"), "line 2: output_throughput: Field required"),
        (LINE | {"duration": 0}, "line 2: duration: Input should be greater than 0"),
        (LINE | {"median_ttft_ms": math.nan}, "line 2: median_ttft_ms: Input should be a finite number"),
        # What sglang.benchmark.steady_state_serving appends, and sglang.bench_one_batch_server.
        ({"concurrency_ratio": 0.8, "output_throughput": 9.0}, "line 2: backend: Field required; .* and 5 more"),
        ({"run_name": "default", "batch_size": 16, "latency": 1.0}, "line 2: backend: Field required"),
    ],
)
def test_a_foreign_line_is_named_with_what_was_expected(tmp_path, line, words):
    with pytest.raises(UsageError, match=words) as raised:
        read_bench_serving(written(tmp_path / "r.jsonl", LINE, line))
    assert "r.jsonl" in str(raised.value) and "--output-file" in str(raised.value)


@pytest.mark.parametrize("content", [None, b"", b"\n\n", b"\xff\xfe\x00"])
def test_a_file_without_runs_is_named(tmp_path, content):
    path = tmp_path / "r.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"r\.jsonl: .*--output-file"):
        read_bench_serving(path)


def measured() -> Measurement:
    records = tuple(
        RequestRecord(
            f"code-{number}", slot, sent, arrivals, arrivals[-1].time + 0.01, 32, 9, "text", {"spec_verify_ct": 4}
        )
        for number, (slot, sent) in enumerate([(0, 0.0), (1, 0.0), (0, 1.01), (1, 1.01)])
        for arrivals in [tuple(Arrival(sent + 0.2 * (step + 1), 1 + 2 * step) for step in range(5))]
    )
    repeat = Repeat(records, 0.0, 2.02, 17.0, (0.2,) * 4, (0.1,) * 4, 2.25, pass_tokens_per_second=36 / 2.02)
    return summarise("eagle-s1-k1-d2", Workload(2, 32, 9, 4, repeats=1), [repeat])


def test_what_we_write_reads_back_by_that_tool_s_definitions(tmp_path):
    path = tmp_path / "ours.jsonl"
    measurement = measured()
    write_bench_serving(path, measurement, server_info={"version": "0.5.23"})
    (run,) = read_bench_serving(path)
    assert (run.tag, run.void, run.sglang_version) == ("eagle-s1-k1-d2 C2 repeat 1", None, "0.5.23")
    assert (run.concurrency, run.requests, run.input_tokens, run.output_tokens) == (2, 4, 32, 9)
    assert run.pass_tokens_per_second == pytest.approx(measurement.repeats[0].pass_tokens_per_second)
    assert run.ttft_p50_seconds == pytest.approx(0.2)
    # To the last byte, by tokens - 1; the suite's own is to the last token.
    assert run.tpot_p50_seconds == pytest.approx((1.01 - 0.2) / 8)
    assert run.accept_length == 2.25


def test_what_we_write_has_the_keys_of_the_real_tool(tmp_path):
    """Recorded: ``python -m sglang.bench_serving --output-details`` of 0.5.23 on the paced server of the benchmarks."""
    path = tmp_path / "ours.jsonl"
    write_bench_serving(path, measured())
    ours, real = json.loads(path.read_text()), json.loads(RECORDED.read_text().splitlines()[0])
    assert set(ours) == set(real)
    for key, value in real.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and key not in ("sharegpt_output_len",):
            assert isinstance(ours[key], int | float), key
    assert len(ours["itls"][0]) == 8


def test_the_real_tool_s_file_reads():
    (run,) = read_bench_serving(RECORDED)
    assert (run.void, run.sglang_version, run.backend) == (None, "0.5.23", "sglang")
    assert run.total_output_tokens == run.requests * run.output_tokens
