"""How answers are asked for and read."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mtpgate.checks.answers import answer_of, collect_answers, finish_reason
from mtpgate.load.prompts import Prompt
from mtpgate.server.client import ServerError

PROMPTS = (Prompt("short-a", "short", "A"), Prompt("prose-b", "prose", "Once upon"))


class FakeServer:
    def __init__(self) -> None:
        self.bodies: list[Mapping[str, object]] = []

    def __call__(self, body: Mapping[str, object]) -> object:
        self.bodies.append(body)
        if isinstance(body["text"], list):
            return [self.answer(text) for text in body["text"]]
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


def test_as_a_batch_all_prompts_are_one_request_in_order():
    server = FakeServer()
    answers = collect_answers(server, PROMPTS, composition="batch")
    assert [body["text"] for body in server.bodies] == [["A", "Once upon"]]
    assert {name: answer.text for name, answer in answers.answers.items()} == {
        "short-a": "A!",
        "prose-b": "Once upon!",
    }


def test_a_batch_with_an_answer_too_few_is_refused():
    with pytest.raises(ServerError, match="expected a list of 2 answers"):
        collect_answers(lambda body: [FakeServer().answer("A")], PROMPTS, composition="batch")


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
