"""How answers are asked for and read."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from mtpgate.checks.answers import Answer, Answers, answer_of, collect_answers, finish_reason, most_in_flight
from mtpgate.load.prompts import Prompt
from mtpgate.server.client import ServerError

LIMIT_SECONDS = 60.0
"""Against a test that hangs; no threshold."""
PROMPTS = (Prompt("short-a", "short", "A"), Prompt("prose-b", "prose", "Once upon"))


class FakeServer:
    """Answers nobody before so many are asked at once."""

    def __init__(self, together: int = 1) -> None:
        self.bodies: list[Mapping[str, object]] = []
        self.together = threading.Barrier(together)

    def __call__(self, body: Mapping[str, object]) -> object:
        self.bodies.append(body)
        self.together.wait(LIMIT_SECONDS)
        return self.answer(str(body["text"]))

    def answer(self, text: str) -> dict[str, object]:
        meta = {"completion_tokens": 2, "finish_reason": {"type": "stop", "matched": 0}}
        return {"text": text + "!", "output_ids": [len(text), 33], "meta_info": meta}


def test_singly_each_prompt_is_a_request_of_its_own():
    server = FakeServer()
    answers = collect_answers(server, PROMPTS, composition="single", max_new_tokens=5)
    sampling = {"temperature": 0, "max_new_tokens": 5}
    assert server.bodies == [{"text": prompt.text, "sampling_params": sampling} for prompt in PROMPTS]
    assert answers.answers["prose-b"].output_ids == (9, 33)
    assert answers.composition == "single"


def test_in_a_batch_all_prompts_are_in_flight_at_once():
    server = FakeServer(together=len(PROMPTS))
    answers = collect_answers(server, PROMPTS, composition="batch")
    assert sorted(str(body["text"]) for body in server.bodies) == ["A", "Once upon"]
    assert {name: answer.text for name, answer in answers.answers.items()} == {
        "short-a": "A!",
        "prose-b": "Once upon!",
    }
    assert answers.in_flight == 2


def test_singly_no_two_requests_are_in_flight_at_once():
    assert collect_answers(FakeServer(), PROMPTS, composition="single").in_flight == 1


@pytest.mark.parametrize(
    ("spans", "most"), [([], 0), ([(0, 1)], 1), ([(0, 2), (1, 3), (4, 5)], 2), ([(0, 1), (1, 2)], 1)]
)
def test_requests_are_in_flight_together_while_none_of_them_is_answered(spans, most):
    assert most_in_flight(spans) == most


def test_answers_are_kept_without_their_log_probabilities():
    meta = {"completion_tokens": 1, "output_token_logprobs": [1], "output_top_logprobs": [2]}
    answers = Answers("single", {"a": Answer("a", (1,), "x", "stop", 1, meta)}, 4)
    assert answers.bare().answers["a"].meta == {"completion_tokens": 1}


@pytest.mark.parametrize("raw", [None, [], {"error": "x"}, {"text": "a"}, {"text": "a", "meta_info": 3}])
def test_what_is_no_answer_is_refused_with_the_prompt(raw):
    with pytest.raises(ServerError, match="short-a: not an answer"):
        answer_of("short-a", raw)


@pytest.mark.parametrize(
    ("meta", "expected"),
    [({"finish_reason": {"type": "length", "length": 3}}, "length"), ({"finish_reason": "stop"}, "stop"), ({}, "")],
)
def test_the_finish_reason_is_an_object_or_a_string(meta, expected):
    assert finish_reason(meta) == expected
