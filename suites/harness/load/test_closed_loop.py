"""The measured path against a server whose content, chunking and send times are known."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import signal
import socket
import statistics

import pytest

from mtpgate.errors import UsageError
from mtpgate.load import closed_loop
from mtpgate.load.closed_loop import STOPPED, run_load
from mtpgate.load.figures import tokens_per_event
from mtpgate.load.measurement import RequestRecord
from mtpgate.load.prompts import TokenPrompt
from suites.harness.load.stream_server import Script, Server, stream_server, token


def prompts(count: int) -> list[TokenPrompt]:
    return [TokenPrompt(f"prose-{number}", "prose", (number, 1, 2, 3)) for number in range(count)]


def load(server: Server, *, count: int = 4, concurrency: int = 2, output_tokens: int = 12, **options: object):
    options = {"idle_timeout_seconds": 30.0} | options
    return run_load(server.url, prompts(count), concurrency=concurrency, output_tokens=output_tokens, **options)


def content(record: RequestRecord) -> tuple[object, ...]:
    counts = [arrival.completion_tokens for arrival in record.arrivals]
    return record.prompt_id, counts, record.text, record.output_ids, record.meta, record.error


def test_each_prompt_is_answered_once_with_all_tokens():
    with stream_server(Script()) as server:
        run = load(server, count=9, concurrency=4)
    assert sorted(record.prompt_id for record in run.records) == sorted(prompt.id for prompt in prompts(9))
    for record in run.records:
        assert record.error is None
        assert [arrival.completion_tokens for arrival in record.arrivals] == list(range(1, 13))
        assert record.text == "".join(token(number) for number in range(12))
        assert record.output_ids == tuple(range(12))
        assert record.meta["finish_reason"] == {"type": "length", "length": 12}


def test_the_request_is_greedy_exact_and_streamed():
    with stream_server(Script()) as server:
        load(server, count=1, concurrency=1)
    sampling = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}
    assert server.requests == [
        {"path": "/generate", "input_ids": [0, 1, 2, 3], "sampling_params": sampling, "stream": True}
    ]


def test_concurrency_is_kept_and_not_exceeded():
    with stream_server(Script(seconds_per_event=0.003)) as server:
        run = load(server, count=12, concurrency=4)
    assert server.in_flight_max == 4
    assert {record.slot for record in run.records} == {0, 1, 2, 3}


def test_a_slot_sends_its_next_request_after_its_last_answer():
    with stream_server(Script()) as server:
        run = load(server, count=12, concurrency=3)
    for slot in range(3):
        mine = sorted((record for record in run.records if record.slot == slot), key=lambda record: record.sent)
        assert all(earlier.finished <= later.sent for earlier, later in itertools.pairwise(mine))


@pytest.mark.parametrize("tokens_per_event", [1, 4, 5])
@pytest.mark.parametrize("piece", [3, 64, 10_000])
@pytest.mark.parametrize("events_per_write", [1, 3])
def test_scanning_agrees_with_decoding_however_the_bytes_are_cut(tokens_per_event, piece, events_per_write):
    script = Script(
        tokens_per_event=tokens_per_event,
        events_per_write=events_per_write,
        split=lambda data: [data[at : at + piece] for at in range(0, len(data), piece)],
    )
    with stream_server(script) as server:
        scanned = load(server, count=2, concurrency=1)
        decoded = load(server, count=2, concurrency=1, decode_every_event=True)
    assert [content(record) for record in scanned.records] == [content(record) for record in decoded.records]
    assert all(record.error is None for record in scanned.records)


def test_events_with_several_tokens_are_told_apart():
    with stream_server(Script(tokens_per_event=5)) as server:
        run = load(server, count=1, concurrency=1)
    assert tokens_per_event(run.records[0]) == (5, 5, 2)


def test_arrivals_follow_the_sends_of_the_server():
    with stream_server(Script(seconds_per_event=0.02)) as server:
        run = load(server, count=1, concurrency=1)
    (record,), (sends,) = run.records, server.sends
    delays = [arrival.time - sent for arrival, (sent, _) in zip(record.arrivals, sends, strict=True)]
    assert min(delays) >= 0
    assert statistics.median(delays) < 0.02 / 2
    assert record.sent < sends[0][0] and record.finished >= record.arrivals[-1].time


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"cut_after": 3}, "connection cut after 3 tokens"),
        ({"status": 400}, "HTTP 400: .*max_new_tokens is too large"),
        ({"status": 500}, "HTTP 500"),
        ({"stop_after": 5}, "5 output tokens instead of the 12"),
        ({"error_event_after": 2}, "error event: .*out of memory"),
        ({"abort_message": "kv full"}, "aborted the request: kv full"),
        ({"incremental": True}, "output_ids has 1 tokens but completion_tokens says 12"),
        ({"prompt_tokens_off_by": 1}, "the server counted 5 input tokens, 4 were sent"),
        ({"garbage": True}, "not what /generate streams"),
        ({"close_after_answer": True}, "closed the connection between two requests|connection cut after 0 tokens"),
    ],
)
def test_a_failure_is_in_its_record(fault, words):
    with stream_server(Script(**fault)) as server:
        run = load(server, count=3, concurrency=1)
    errors = [record.error for record in run.records if record.error is not None]
    assert errors and re.search(words, errors[0]), errors


def test_silence_ends_the_load_after_the_idle_timeout():
    with stream_server(Script(hang_after=4)) as server:
        run = load(server, count=4, concurrency=2, idle_timeout_seconds=0.2)
    assert sorted(record.error for record in run.records) == ["no bytes for 0.2 s after 4 tokens", STOPPED]


def test_a_slow_stream_is_not_silence():
    with stream_server(Script(seconds_per_event=0.1)) as server:
        run = load(server, count=1, concurrency=1, output_tokens=8, idle_timeout_seconds=0.5)
    assert run.records[0].error is None


def test_a_failure_stops_the_load():
    with stream_server(Script(cut_after=2)) as server:
        run = load(server, count=40, concurrency=2)
    # The second slot may or may not have sent its first request when the first one's stream was cut.
    assert 1 <= len(run.records) <= 2
    assert len(server.requests) <= 2


def test_a_port_without_a_server_is_one_failed_record():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        run = run_load(url, prompts(3), concurrency=2, output_tokens=4, idle_timeout_seconds=1.0)
    assert len(run.records) == 1 and "connection 1 of 2" in run.records[0].error


@pytest.mark.parametrize("url", ["https://127.0.0.1:3", "127.0.0.1:3", "http://127.0.0.1"])
def test_an_unusable_address_is_a_usage_error(url):
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        run_load(url, prompts(1), concurrency=1, output_tokens=4, idle_timeout_seconds=1.0)


def test_concurrency_beyond_the_prompts_is_a_usage_error():
    with pytest.raises(UsageError, match="got 3"):
        run_load("http://127.0.0.1:9", prompts(2), concurrency=3, output_tokens=4, idle_timeout_seconds=1.0)


def test_garbage_collection_is_as_it_was():
    assert gc.isenabled()
    with stream_server(Script()) as server:
        load(server, count=1, concurrency=1)
    assert gc.isenabled()


def test_the_client_reports_its_own_health():
    with stream_server(Script(seconds_per_event=0.01)) as server:
        health = load(server, count=4, concurrency=2).health
    assert 0 < health.cpu_share < 1
    assert 1 < health.in_flight_mean <= 2.001
    assert health.turnaround_max_seconds >= 0


def test_the_standard_event_loop_serves_as_well(monkeypatch):
    monkeypatch.setattr(closed_loop, "new_event_loop", asyncio.new_event_loop)
    with stream_server(Script(tokens_per_event=3)) as server:
        run = load(server, count=6, concurrency=3)
    assert [record.error for record in run.records] == [None] * 6


@pytest.mark.parametrize("loop", [closed_loop.new_event_loop, asyncio.new_event_loop])
def test_an_exception_from_a_signal_handler_ends_the_load(loop, monkeypatch):
    """That is how pytest-timeout ends a test."""

    class Alarm(BaseException):
        pass

    def ring(*_: object) -> None:
        if asyncio._get_running_loop() is None:  # Too early, on a busy machine: the load has not begun.
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            return
        raise Alarm

    monkeypatch.setattr(closed_loop, "new_event_loop", loop)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with stream_server(Script(hang_after=1)) as server, pytest.raises(Alarm):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            load(server, idle_timeout_seconds=10.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
