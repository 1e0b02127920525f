"""The paced server of the benchmarks, and our client on it: one clock, so cause comes before effect, piece by piece."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import requests

from mtpgate.load.measure import run_repeat
from mtpgate.load.prompts import TokenPrompt
from suites.harness.peers.pacing import SERVER, PacedServer, paced_server, truth_of

PROMPTS = [TokenPrompt(f"numbers-{number}", "numbers", (number, 1, 2, 3)) for number in range(6)]


@pytest.fixture(scope="module")
def server() -> Iterator[PacedServer]:
    with paced_server() as running:
        yield running


@pytest.mark.parametrize("api", ["generate", "completions"])
@pytest.mark.parametrize("tokens_per_chunk", [1, 4])
def test_each_piece_is_read_after_it_was_sent_and_before_the_next_but_one(server, api, tokens_per_chunk):
    server.pace(ttft=0.02, gap=0.01, tokens_per_chunk=tokens_per_chunk)
    repeat = run_repeat(server.url, PROMPTS, concurrency=3, output_tokens=14, api=api)
    log = {request["key"]: request for request in server.log()}
    assert len(log) == len(repeat.records) == 6
    for record in repeat.records:
        sent = log[int(record.prompt_id.rpartition("-")[2])]
        assert record.error is None
        assert record.sent < sent["received"]
        assert len(record.arrivals) == len(sent["sends"])
        assert all(before < arrival.time for before, arrival in zip(sent["sends"], record.arrivals, strict=True))
        counts = [arrival.completion_tokens for arrival in record.arrivals]
        assert counts == [*range(tokens_per_chunk, 14, tokens_per_chunk), 14]


def test_the_pace_is_never_faster_than_it_was_set_to(server):
    server.pace(ttft=0.03, gap=0.004, tokens_per_chunk=2)
    run_repeat(server.url, PROMPTS, concurrency=2, output_tokens=20)
    log = server.log()
    truth = truth_of(log)
    assert truth.ttft >= 0.03
    # A send may be late, and the next one is then early against it, so the mean over an answer is asked for.
    assert truth.tpot * 18 >= 0.004 * 9 - (truth.ttft - 0.03)
    assert (truth.requests, truth.tokens) == (6, 120)
    assert 0 < truth.lost(2) < 1


def test_as_fast_as_it_goes_loses_nothing(server):
    server.pace(ttft=0.0, gap=0.0)
    repeat = run_repeat(server.url, PROMPTS, concurrency=6, output_tokens=300)
    assert truth_of(server.log()).tokens == sum(record.output_tokens for record in repeat.records) == 1800


def test_what_is_not_streamed_is_answered_at_once(server):
    told = requests.post(f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 3}, timeout=30).json()
    assert told["choices"][0]["text"] == "abc"
    assert told["usage"]["completion_tokens"] == 3


def test_it_ends_with_its_starter():
    process = subprocess.Popen([sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline().startswith(b"http://127.0.0.1:")
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()
