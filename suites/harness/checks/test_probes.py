"""Each probe is green on a server that answers as it must, and red, in words, on one that does one thing otherwise."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mtpgate.checks.facts import Facts, look
from mtpgate.checks.probe_load import CROWD_TOKENS, FIRST_WAVE
from mtpgate.checks.probe_stops import stop_strings, stop_tokens
from mtpgate.checks.probes import DEADLY, PROBES, ProbeResult, run_probe
from mtpgate.checks.probing import PROMPT
from mtpgate.server.client import ServerError
from suites.harness.checks.fake_server import EOS, FakeServer, ranked

Answer = dict[str, Any]


def run(probe: str, server: FakeServer, **facts: Any) -> ProbeResult:
    return run_probe(probe, server, server.facts(**facts))


def parameters(request: Answer) -> dict[str, Any]:
    return dict(request["sampling_params"])


def other_token(answer: Answer, at: int = -1) -> None:
    answer["output_ids"][at] += 1


def longer(answer: Answer) -> None:
    answer["output_ids"].append(65)
    answer["meta_info"]["completion_tokens"] += 1


def without_end(answer: Answer) -> None:
    answer["meta_info"]["finish_reason"] = {"type": "length"}


class Spoilt:
    """Faults of a server, by what they do to a request's answer."""

    @staticmethod
    def second_answer(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        key = json.dumps(request)
        seen[key] += 1
        if seen[key] == 2:
            other_token(answer)

    @staticmethod
    def after_another_with_the_prefix(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        text = str(request.get("text", ""))
        if any(other != text and other[:20] == text[:20] for other in seen) and seen[text] == 0:
            other_token(answer)
        seen[text] += 1

    @staticmethod
    def one_too_many(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if parameters(request)["max_new_tokens"] == 2:
            longer(answer)

    @staticmethod
    def other_first_token(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if parameters(request)["max_new_tokens"] == 3:
            other_token(answer, 0)

    @staticmethod
    def text_with_the_stop_string(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        for stop in parameters(request).get("stop", ()):
            answer["text"] += stop

    @staticmethod
    def other_tokens_before_the_stop(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if "stop" in parameters(request):
            other_token(answer, 0)

    @staticmethod
    def one_stop_overlooked(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if "stop" in parameters(request) and len(answer["output_ids"]) == 7:
            answer["text"] += parameters(request)["stop"][0] + "12345"
            answer["output_ids"] += list(b"12345")
            answer["meta_info"]["completion_tokens"] += 5
            without_end(answer)

    @staticmethod
    def other_tokens_before_the_stop_token(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if "stop_token_ids" in parameters(request):
            other_token(answer, 0)

    @staticmethod
    def the_best_token_only(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if "top_k" in parameters(request):
            prompt = list(str(request["text"]).encode())
            seen["answers"] += 1
            answer["output_ids"] = [ranked(prompt, place)[0][1] for place in range(len(answer["output_ids"]))]
            # One is another, or it would be told that they are all the same.
            answer["output_ids"][-1] = ranked(prompt, 11)[seen["answers"] % 2][1]

    @staticmethod
    def no_stop_token(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if "stop_token_ids" in parameters(request):
            without_end(answer)

    @staticmethod
    def beyond_the_stop_token(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if "stop_token_ids" in parameters(request):
            longer(answer)

    @staticmethod
    def no_end_of_text(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if "logit_bias" in parameters(request):
            without_end(answer)

    @staticmethod
    def last_sample(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        seen["n"] += "n" in parameters(request)
        if seen["n"] == 3:
            other_token(answer)
            seen["n"] += 1

    @staticmethod
    def broken_json(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if "json_schema" in parameters(request):
            answer["text"] = answer["text"][:-1]

    @staticmethod
    def endless_json(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if "json_schema" in parameters(request):
            without_end(answer)

    @staticmethod
    def last_turn(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        seen["turns"] += str(request.get("text", "")).startswith("[{")
        if seen["turns"] == 3:
            answer["text"] += "?"
            seen["turns"] += 1

    @staticmethod
    def short_chat(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if str(request.get("text", "")).startswith("[{"):
            answer["output_ids"].pop()

    @staticmethod
    def lost_token(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if parameters(request)["max_new_tokens"] == FIRST_WAVE[0]:
            answer["output_ids"].pop()

    @staticmethod
    def other_in_a_batch(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        seen[json.dumps(request)] += 1
        if seen[json.dumps(request)] == 1 and parameters(request)["max_new_tokens"] == FIRST_WAVE[0]:
            other_token(answer)

    @staticmethod
    def aborted_in_a_crowd(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if str(request.get("text", "")).startswith("9: "):
            answer["meta_info"]["finish_reason"] = {"type": "abort"}

    @staticmethod
    def other_after(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if parameters(request)["max_new_tokens"] != CROWD_TOKENS:
            return
        seen["asked"] += 1
        if seen["asked"] == 2:
            other_token(answer)

    @staticmethod
    def token_lost_in_an_aborted_stream(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if answer["meta_info"]["finish_reason"] == {"type": "abort"}:
            answer["output_ids"].pop()

    @staticmethod
    def no_tokens_for_long_input(request: Answer, answer: Answer, seen: Counter[str]) -> None:
        if len(request.get("input_ids", ())) == 120:
            answer["output_ids"].clear()


FAULTS = [
    ("same-prompt-twice", "second_answer", "the same prompt a second time.* they differ from token 11 on"),
    ("shared-prefix", "after_another_with_the_prefix", "a prompt with a cached prefix: expected tokens"),
    ("short-answers", "one_too_many", "max_new_tokens 2: asked for 2 tokens, got 3"),
    ("short-answers", "other_first_token", "max_new_tokens 3: .*differ from token 0 on"),
    ("stop-string", "text_with_the_stop_string", "stop string .* and finish_reason 'stop', found .* and 'stop'"),
    ("stop-string", "other_tokens_before_the_stop", "stop string .* they differ from token 0 on"),
    ("stop-string", "one_stop_overlooked", r"stop strings at 1 of 12 places of an answer \(token 7\) .*and 'length'"),
    ("sampling", "the_best_token_only", "sampled tokens do not follow the model's distribution: .*0.15 instead of 1.5"),
    (
        "end-of-text",
        "no_stop_token",
        r"at 12 of 12 places .*stop_token_ids \[.* expected finish_reason 'stop' after 1 tokens, found 'length'",
    ),
    ("end-of-text", "beyond_the_stop_token", "expected finish_reason 'stop' after 1 tokens, found 'stop' after 2"),
    ("end-of-text", "other_tokens_before_the_stop_token", r"stop_token_ids .* they differ from token 0 on"),
    ("end-of-text", "no_end_of_text", r"the end of text \(token 256\).*found 'length'"),
    ("several-answers", "last_sample", "n=3, answer 3: expected tokens"),
    ("json-schema", "broken_json", r"expected one of its values and finish_reason 'stop', found '\{\"ok\": true'"),
    ("json-schema", "endless_json", "found .* and 'length'"),
    ("chat", "last_turn", r"a second turn asked again: expected '.*', found '.*\?'"),
    ("chat", "short_chat", "chat, 1 messages: asked for 8 tokens, got 7"),
    ("changing-batch", "lost_token", "batch that shrinks and grows: asked for 14 tokens, got 13"),
    ("changing-batch", "other_in_a_batch", "batch that shrinks and grows, 14 tokens: .*differ from token 13"),
    ("more-than-run", "aborted_in_a_crowd", r"one of 10 requests at once \(max_running_requests 6\).*'abort'"),
    ("abort", "other_after", "before and after an abort: .*differ from token 3"),
    ("abort", "token_lost_in_an_aborted_stream", "the aborted answer: token_count: 1 token ids, completion_tokens 2"),
    ("context-limit", "no_tokens_for_long_input", "an input of 120 tokens, the longest: asked for 1 tokens, got 0"),
]


@pytest.mark.parametrize("probe", [*PROBES, *DEADLY])
def test_green_on_a_server_that_answers_as_it_must(probe: str) -> None:
    result = run(probe, FakeServer())
    assert (result.name, result.outcome) == (probe, "passed"), result.message


@pytest.mark.parametrize(("probe", "fault", "words"), FAULTS)
def test_red_in_words(probe: str, fault: str, words: str) -> None:
    seen: Counter[str] = Counter()
    result = run(probe, FakeServer(lambda request, answer: getattr(Spoilt, fault)(request, answer, seen)))
    assert result.outcome == "failed"
    assert result.message.startswith(f"{probe}: ")
    assert re.search(words, result.message, re.DOTALL), result.message


def test_every_probe_of_answers_has_a_fault_that_it_finds() -> None:
    assert {probe for probe, _, _ in FAULTS} == {*PROBES} - {"refusals"}


@pytest.mark.parametrize(("exact", "outcome"), [(False, "passed"), (True, "failed")])
def test_the_cached_answer_must_be_the_computed_one_in_float32_only(exact: bool, outcome: str) -> None:
    asked = itertools.count()

    def spoil(request: Answer, answer: Answer) -> None:
        if next(asked) == 0:
            other_token(answer)

    result = run("same-prompt-twice", FakeServer(spoil), exact=exact)
    assert result.outcome == outcome
    assert ("a second time, from the prefix cache: expected tokens" in result.message) == exact


def test_in_a_narrow_type_two_answers_from_the_cache_must_be_the_same() -> None:
    seen: Counter[str] = Counter()
    server = FakeServer(lambda request, answer: Spoilt.second_answer(request, answer, seen))
    result = run("same-prompt-twice", server, exact=False)
    assert "the same prompt a third time, cached as at the second: expected tokens" in result.message


def test_in_a_narrow_type_a_batch_is_compared_for_sanity_only() -> None:
    seen: Counter[str] = Counter()
    server = FakeServer(lambda request, answer: Spoilt.other_in_a_batch(request, answer, seen))
    assert run("changing-batch", server, exact=False).outcome == "passed"


@pytest.mark.parametrize(
    ("texts", "stops"),
    [
        (["a", "b", "a", "b", "c"], {1: "a", 2: "b", 3: "ba", 4: "bab", 5: "c"}),
        (["one", " two", " one"], {1: "e", 2: "wo", 3: " one"}),
        # A token that adds no text, and one that ends inside a character, complete nothing.
        (["x", "", "\ufffd", "y"], {1: "x", 4: "y"}),
        ([], {}),
    ],
)
def test_a_stop_string_is_first_complete_at_its_token(texts: list[str], stops: dict[int, str]) -> None:
    assert stop_strings(texts) == stops


def test_a_token_that_came_before_is_no_stop() -> None:
    assert stop_tokens((5, 6, 5, 7, 6)) == {1: 5, 2: 6, 4: 7}


def test_a_server_that_tells_no_texts_of_tokens_is_asked_for_stops_all_the_same() -> None:
    asked = []

    def longer_tokens(request: Answer, answer: Answer) -> None:
        """Tokens of several characters, which are not told."""
        told = answer["meta_info"].pop("output_token_logprobs", None)
        if told:
            answer["text"] = "".join(f"<{number}>" for number in range(12))
        for stop in parameters(request).get("stop", ()):
            asked.append(stop)
            answer["text"], _, _ = "".join(f"<{number}>" for number in range(12)).partition(stop)
            answer["meta_info"]["finish_reason"] = {"type": "stop"}

    result = run("stop-string", FakeServer(longer_tokens))
    assert result.outcome == "passed", result.message
    assert "stopped at strings that character 1, 4, 7" in result.message
    assert len(asked) <= 16


def test_an_answer_that_is_no_text_fails_the_probe_that_got_it() -> None:
    def spoil(request: Answer, answer: Answer) -> None:
        answer["text"] = "half \ufffd a text"

    assert "n=3: invalid_text: U+FFFD at character 5" in run("several-answers", FakeServer(spoil)).message


def test_in_a_narrow_type_a_stop_may_come_in_another_answer_and_must_be_kept_to() -> None:
    def other_answer(request: Answer, answer: Answer) -> None:
        if "stop" in parameters(request):
            answer["text"] = answer["text"].swapcase()

    def overlooked(request: Answer, answer: Answer) -> None:
        Spoilt.one_stop_overlooked(request, answer, Counter())

    assert run("stop-string", FakeServer(other_answer), exact=False).outcome == "passed"
    assert "at 1 of 12 places" in run("stop-string", FakeServer(overlooked), exact=False).message


def test_bad_requests_that_are_answered_are_red() -> None:
    result = run("refusals", FakeServer(refuses=False))
    assert "temperature -1: expected a refusal (HTTP 4xx), got an answer" in result.message


def test_an_input_beyond_the_context_that_is_answered_is_red() -> None:
    result = run("context-limit", FakeServer(refuses=False))
    assert "an input of 129 tokens at context length 128: expected a refusal" in result.message


def test_a_refusal_with_http_500_is_an_error() -> None:
    server = FakeServer()

    def broken(*_: object) -> None:
        raise ServerError("oops", status=500)

    server.maybe_refuse = broken  # type: ignore[method-assign]
    with pytest.raises(ServerError, match="refusals: oops"):
        run("refusals", server)


def test_a_server_that_is_gone_is_no_result_but_an_error_with_the_probes_name() -> None:
    def die(request: Answer, answer: Answer) -> None:
        raise ServerError("connection refused")

    with pytest.raises(ServerError, match="empty-prompt: connection refused"):
        run("empty-prompt", FakeServer(die))


def test_a_bad_input_may_be_answered() -> None:
    assert "token id -1 is answered with 4 tokens" in run("negative-token", FakeServer(refuses=False)).message


def test_an_aborted_request_that_runs_on_is_red() -> None:
    server = FakeServer()
    server.abort = lambda rid: None  # type: ignore[method-assign]
    assert "expected finish_reason 'abort', found 'length' after 64 of 64 tokens" in run("abort", server).message


def test_without_a_chat_template_chat_is_not_asked() -> None:
    server = FakeServer()

    def refuse(*_: object) -> dict[str, Any]:
        raise ServerError("there is no chat template", status=400)

    server.chat = refuse  # type: ignore[method-assign]
    assert "not asked: the model has no chat template" in run("chat", server).message


@pytest.mark.parametrize(
    ("probe", "facts", "words"),
    [
        ("more-than-run", {"max_running_requests": 2048}, "not asked: max_running_requests is 2048"),
        ("more-than-run", {"max_running_requests": None}, "not asked: max_running_requests is not known"),
        ("context-limit", {"longest_input": None}, "not asked: the server names no limit"),
        ("end-of-text", {"eos_id": None}, "the model's end of text is not known here"),
    ],
)
def test_what_cannot_be_asked_is_said(probe: str, facts: dict[str, Any], words: str) -> None:
    result = run(probe, FakeServer(), **facts)
    assert result.outcome == ("passed" if probe == "end-of-text" else "not_asked")
    assert words in result.message


def test_a_server_that_is_never_idle_fails_the_probe() -> None:
    server = FakeServer()
    server.report = [{"num_running_reqs": 1, "num_used_tokens": 9}, {"num_running_reqs": 1, "num_waiting_reqs": 0}]
    result = run("json-schema", server)
    assert "json-schema: afterwards: not idle 10 s after the last answer" in result.message
    assert "found 2 running requests, 9 KV tokens in use" in result.message


def test_kv_tokens_that_stay_in_use_fail_the_probe() -> None:
    server = FakeServer()
    server.report = [{"num_used_tokens": 16}]
    assert "found 16 KV tokens in use" in run("json-schema", server).message


def test_a_report_from_before_the_question_does_not_count() -> None:
    server = FakeServer()
    server.report = [{"timestamp": -7.0}]
    assert "its last report of that is 7 s older than the question" in run("json-schema", server).message


def test_a_server_that_gets_idle_in_time_is_well() -> None:
    server = FakeServer()
    states = iter([[{"num_waiting_reqs": 3}], [{"num_running_reqs": 1}], [{}]])
    server.loads = lambda: next(states)  # type: ignore[method-assign]
    assert run("json-schema", server).outcome == "passed"


def test_without_a_report_of_its_load_a_server_is_idle_when_its_cache_can_be_emptied() -> None:
    server = FakeServer()
    server.report = None
    assert run("json-schema", server).outcome == "passed"
    server.flush_status = 400
    assert "not idle: the cache cannot be emptied" in run("json-schema", server).message


def test_no_tokens_for_the_question_afterwards_fails_the_probe() -> None:
    def spoil(request: Answer, answer: Answer) -> None:
        if request.get("text") == PROMPT and "json_schema" not in parameters(request):
            answer["output_ids"].clear()

    result = run("json-schema", FakeServer(spoil))
    assert "afterwards: a short question afterwards: asked for 2 tokens, got 0" in result.message


def test_facts_come_from_the_server_and_the_models_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, 258]}))
    info = {"max_req_input_len": 122, "max_running_requests": 16, "dtype": "float32", "model_path": str(tmp_path)}
    assert look(FakeServer(), info) == Facts(128, 121, 16, EOS, exact=True)
    assert look(FakeServer(), {**info, "speculative_num_draft_tokens": 9}).longest_input == 128 - 9 - 1
    narrow = {"dtype": "bfloat16", "internal_states": [{"effective_max_running_requests_per_dp": 48}]}
    assert look(FakeServer(), narrow) == Facts(128, None, 48, None, exact=False)
