"""Warm-up, repeats, median, and what makes a measurement void."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest

from mtpgate.errors import UsageError
from mtpgate.load.figures import NAMES
from mtpgate.load.measure import measure, repeat_objection, run_repeat
from mtpgate.load.measurement import Measurement
from mtpgate.load.prompts import TokenPrompt
from mtpgate.matrix.cell import Workload
from suites.harness.load.stream_server import Script, Server, stream_server

WORKLOAD = Workload(concurrency=2, input_tokens=4, output_tokens=8, requests=5, repeats=3)
PROMPTS = [TokenPrompt(f"code-{number}", "code", (number, 1, 2, 3)) for number in range(7)]


def measured(server: Server, workload: Workload = WORKLOAD, **options: object) -> Measurement:
    options = {"flush": lambda: None, "idle_timeout_seconds": 10.0} | options
    return measure(server.url, "none", workload, PROMPTS, **options)


def test_the_value_is_the_median_of_the_repeats_without_the_warm_up():
    with stream_server(Script()) as server:
        measurement = measured(server)
    assert measurement.void is None
    assert len(measurement.repeats) == 3
    speeds = [repeat.output_tokens_per_second for repeat in measurement.repeats]
    assert measurement.output_tokens_per_second == statistics.median(speeds)
    assert len(server.requests) == 2 + 3 * 5
    assert (measurement.workload, measurement.cell_id) == ("C2", "none")


def test_each_repeat_sends_the_same_prompts():
    with stream_server(Script()) as server:
        measured(server, warmup=False)
    firsts = [body["input_ids"][0] for body in server.requests]
    assert [sorted(firsts[at : at + 5]) for at in (0, 5, 10)] == [[0, 1, 2, 3, 4]] * 3


def test_the_cache_is_flushed_before_each_pass():
    events = []
    with stream_server(Script()) as server:
        measured(server, flush=lambda: events.append(len(server.requests)))
    assert events == [0, 2, 7, 12]


def test_the_whole_pass_is_kept_beside_its_steady_state():
    with stream_server(Script(seconds_per_event=0.005)) as server:
        repeat = run_repeat(server.url, PROMPTS, concurrency=3, output_tokens=8)
    wall = repeat.ended - repeat.started
    assert repeat.pass_tokens_per_second * wall == pytest.approx(7 * 8)
    assert repeat.started == min(record.sent for record in repeat.records)
    assert repeat.output_tokens_per_second == repeat.steady.output_tokens_per_second
    # Seven requests on three slots: one slot works alone at the end.
    assert repeat.steady.tail_seconds > 0.2 * wall
    assert repeat.output_tokens_per_second > 1.1 * repeat.pass_tokens_per_second


def test_a_pass_without_a_steady_state_has_the_figure_of_the_whole():
    with stream_server(Script(stop_after=3)) as server:
        repeat = run_repeat(server.url, PROMPTS[:1], concurrency=1, output_tokens=8)
    assert repeat.steady is None
    assert repeat.output_tokens_per_second == repeat.pass_tokens_per_second > 0


def test_the_distributions_of_all_repeats_come_with_the_measurement():
    with stream_server(Script(tokens_per_event=3)) as server:
        found = measured(server).distributions
    assert set(found) == set(NAMES)
    assert found["ttft_seconds"].samples == found["end_to_end_seconds"].samples == 3 * 5
    assert found["tokens_per_chunk"].samples <= 3 * 5 * 3
    assert found["ttft_seconds"].p99 is None


def test_what_was_cut_is_in_the_conditions():
    with stream_server(Script()) as server:
        conditions = measured(server).conditions
    for name in ("ramp_seconds", "tail_seconds", "pass_tokens_per_second"):
        assert len(conditions[name]) == 3 and min(conditions[name]) >= 0


def test_the_progress_names_cell_workload_and_pass():
    lines = []
    with stream_server(Script()) as server:
        measured(server, on_progress=lines.append)
    assert lines[0] == "none C2: warm-up"
    assert lines[-1].startswith("none C2: repeat 3 of 3: ") and lines[-1].endswith(" tok/s")


def test_the_accept_length_comes_from_the_counts():
    with stream_server(Script(verify_steps=4)) as server:
        measurement = measured(server)
    assert measurement.accept_length == pytest.approx(8 / 4)


def test_without_speculation_there_is_no_accept_length():
    with stream_server(Script()) as server:
        assert measured(server).accept_length is None


def test_a_failed_request_voids_and_ends_the_measurement():
    with stream_server(Script(stop_after=3)) as server:
        measurement = measured(server)
    assert measurement.void.startswith("warm-up: request code-")
    assert "3 output tokens instead of the 8" in measurement.void
    assert math.isnan(measurement.output_tokens_per_second)
    assert len(server.requests) == 2


def test_a_failure_in_a_later_repeat_is_named():
    script = Script()

    def break_in_the_second_repeat() -> None:
        if len(server.requests) == 7:
            script.cut_after = 2

    with stream_server(script) as server:
        measurement = measured(server, flush=break_in_the_second_repeat)
    assert measurement.void.startswith("repeat 2 of 3: request code-")
    assert "connection cut after 2 tokens" in measurement.void


def test_answers_from_the_prefix_cache_void_the_measurement():
    with stream_server(Script(cached_tokens=3)) as server:
        measurement = measured(server)
    assert "75% of the input tokens came from the prefix cache" in measurement.void


def test_a_client_at_its_limit_voids_the_pass():
    with stream_server(Script()) as server:
        repeat = run_repeat(server.url, PROMPTS, concurrency=1, output_tokens=4)
    repeat.client["cpu_share"] = 0.95
    assert "the client limited itself: it used 95% of a core" in repeat_objection(repeat)


def test_a_workload_can_ask_the_openai_api():
    with stream_server(Script(verify_steps=4)) as server:
        measurement = measured(server, workload=replace(WORKLOAD, api="completions"))
    assert measurement.void is None
    assert measurement.workload == "C2-completions"
    assert {body["path"] for body in server.requests} == {"/v1/completions"}
    assert measurement.accept_length == pytest.approx(8 / 4)


def test_too_few_prompts_are_a_usage_error():
    with pytest.raises(UsageError, match="9 requests need 9 different prompts, got 7"):
        measure("http://127.0.0.1:9", "none", Workload(1, 4, 8, 9), PROMPTS, flush=lambda: None)
