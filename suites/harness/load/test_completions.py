"""The OpenAI-compatible stream gives the same records as the native one, as far as the server tells."""

from __future__ import annotations

import pytest

from mtpgate.load.closed_loop import run_load
from mtpgate.load.figures import tokens_per_event
from mtpgate.load.measurement import RequestRecord
from mtpgate.load.prompts import TokenPrompt
from suites.harness.load.stream_server import Script, stream_server, token

PROMPTS = [TokenPrompt(f"prose-{number}", "prose", (number, 1, 2, 3)) for number in range(4)]


def record(script: Script, **options: object) -> RequestRecord:
    with stream_server(script) as server:
        options = {"api": "completions"} | options
        run = run_load(server.url, PROMPTS[:1], concurrency=1, output_tokens=12, idle_timeout_seconds=30.0, **options)
    return run.records[0]


def counts(of: RequestRecord) -> list[int]:
    return [arrival.completion_tokens for arrival in of.arrivals]


def test_the_request_is_greedy_exact_and_asks_for_counts():
    with stream_server(Script()) as server:
        run_load(server.url, PROMPTS[:1], concurrency=1, output_tokens=12, idle_timeout_seconds=30.0, api="completions")
    (asked,) = server.requests
    assert asked["path"] == "/v1/completions"
    assert asked["prompt"] == [0, 1, 2, 3]
    assert (asked["max_tokens"], asked["temperature"], asked["ignore_eos"], asked["stream"]) == (12, 0, True, True)
    assert asked["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize("tokens_per_event", [1, 5])
def test_both_streams_of_one_answer_give_one_record(tokens_per_event):
    script = Script(tokens_per_event=tokens_per_event, verify_steps=4, cached_tokens=2)
    native, openai = record(script, api="generate"), record(script)
    assert openai.error is None
    assert openai.text == native.text == "".join(token(number) for number in range(12))
    assert (counts(openai), openai.output_ids) == (counts(native), native.output_ids)
    for name in ("completion_tokens", "prompt_tokens", "cached_tokens", "spec_verify_ct"):
        assert openai.meta[name] == native.meta[name]
    assert openai.meta["finish_reason"]["type"] == "length"


@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("piece", [3, 64, 10_000])
@pytest.mark.parametrize("events_per_write", [1, 3])
def test_scanning_agrees_with_decoding_however_the_bytes_are_cut(continuous, piece, events_per_write):
    script = Script(
        tokens_per_event=5,
        continuous_usage=continuous,
        events_per_write=events_per_write,
        split=lambda data: [data[at : at + piece] for at in range(0, len(data), piece)],
    )
    scanned, decoded = record(script), record(script, decode_every_event=True)
    assert (counts(scanned), scanned.text, scanned.meta) == (counts(decoded), decoded.text, decoded.meta)
    assert scanned.error is None and scanned.counts_exact is continuous


def test_several_tokens_a_chunk_are_told_apart():
    assert tokens_per_event(record(Script(tokens_per_event=5))) == (5, 5, 2)


def test_without_continuous_usage_the_pieces_share_the_total():
    found = record(Script(tokens_per_event=5, continuous_usage=False))
    assert (found.error, found.output_tokens, found.counts_exact) == (None, 12, False)
    assert counts(found) == [4, 8, 12]


def test_the_last_piece_is_the_last_arrival_not_the_usage_behind_it():
    found = record(Script(tokens_per_event=4, continuous_usage=False, seconds_per_event=0.01))
    gaps = [after.time - before.time for before, after in zip(found.arrivals, found.arrivals[1:], strict=False)]
    assert len(gaps) == 2 and min(gaps) > 0.005


def test_a_server_that_tells_no_counts_at_all_is_refused():
    found = record(Script(continuous_usage=False, final_usage=False))
    assert "stream_options.include_usage is not honoured" in found.error


def test_a_server_without_the_extensions_still_gives_exact_counts():
    found = record(Script(tokens_per_event=5, extensions=False, verify_steps=4))
    assert (found.error, counts(found), found.output_ids) == (None, [5, 10, 12], ())
    assert "spec_verify_ct" not in found.meta


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"cut_after": 3}, "connection cut after 3 tokens"),
        ({"status": 400}, "HTTP 400: .*max_new_tokens is too large"),
        ({"stop_after": 5}, "5 output tokens instead of the 12"),
        ({"error_event_after": 2}, "error event: .*out of memory"),
        ({"prompt_tokens_off_by": 1}, "the server counted 5 input tokens, 4 were sent"),
        ({"garbage": True}, "not what /v1/completions streams"),
    ],
)
def test_a_failure_is_in_its_record(fault, words):
    import re

    assert re.search(words, record(Script(**fault)).error)
