"""Parity finds the first difference of each answer and says what to look at next."""

from __future__ import annotations

import pytest

from mtpgate.checks.answers import Answer, Answers
from mtpgate.checks.parity import SHOWN_CHARACTERS, compare_answers, parity_messages
from mtpgate.errors import UsageError


def answers(*contents: str, composition: str = "single", finish: str = "length", **named: str) -> Answers:
    """Answers whose token ids are their characters."""
    texts = {f"prose-{number}": text for number, text in enumerate(contents)} | named
    return Answers(
        composition,
        {name: Answer(name, tuple(map(ord, text)), text, finish, len(text)) for name, text in texts.items()},
        max_new_tokens=64,
    )


def test_equal_answers_are_parity():
    report = compare_answers(answers("abc", "def"), answers("abc", "def"))
    assert report.ok
    assert report.message() == "single: 2 of 2 answers equal the reference's (6 tokens)"


def test_the_first_different_token_is_reported_with_both_tokens():
    report = compare_answers(answers("abcdef", "same"), answers("abXdYf", "same"))
    (difference,) = report.differences
    assert (difference.prompt_id, difference.what, difference.position) == ("prose-0", "token", 2)
    assert (difference.expected, difference.found) == (f"token {ord('c')}", f"token {ord('X')}")
    assert "1 of 2 answers" in report.message()


def test_tokens_are_decoded_where_that_is_possible():
    report = compare_answers(answers("abc"), answers("abX"), decode=lambda tokens: "".join(map(chr, tokens)))
    assert report.differences[0].found == "token 88 'X'"


def test_a_dropped_token_at_the_end_is_a_difference():
    (difference,) = compare_answers(answers("abc"), answers("ab")).differences
    assert (difference.what, difference.position) == ("length", 2)
    assert "stop conditions" in compare_answers(answers("abc"), answers("ab")).message()


def test_other_text_of_the_same_tokens_is_a_difference():
    cell = Answers("single", {"prose-0": Answer("prose-0", (97, 98), "aX", "length", 2)}, 64)
    report = compare_answers(answers("ab"), cell)
    assert (report.differences[0].what, report.differences[0].position) == ("text", 1)
    assert "the detokenizer" in report.message()


def test_another_finish_reason_is_a_difference():
    (difference,) = compare_answers(answers("abc"), answers("abc", finish="stop")).differences
    assert (difference.what, difference.expected, difference.found) == ("finish_reason", "'length'", "'stop'")


def test_an_answer_that_is_not_there_is_a_difference():
    (difference,) = compare_answers(answers("abc", "def"), answers("abc")).differences
    assert (difference.prompt_id, difference.what) == ("prose-1", "missing")


def test_at_most_three_differences_are_shown_and_the_rest_counted():
    report = compare_answers(answers(*["abc"] * 7), answers("abc", *["abX"] * 6))
    message = report.message()
    assert "1 of 7 answers" in message
    assert message.count("reference token") == 3
    assert "and 3 more" in message


def test_the_text_around_is_bounded():
    report = compare_answers(answers("a" * 5000 + "b" * 5000), answers("a" * 5000 + "c" * 5000))
    (difference,) = report.differences
    assert len(difference.expected_text) + len(difference.found_text) <= SHOWN_CHARACTERS
    assert "ab" in difference.expected_text and "ac" in difference.found_text


@pytest.mark.parametrize(
    ("reference", "cell", "composition", "words"),
    [
        (("abc", "abc"), ("Xbc", "Ybc"), "single", "before any draft"),
        (("abc", "abc"), ("abX", "aYc"), "single", "the verify step accepts"),
        (("abc", "abc"), ("abX", "abc"), "single", "KV after a rejected draft"),
        (("abc", "abc"), ("abX", "abc"), "batch", "answers asked singly"),
    ],
)
def test_the_message_says_what_to_look_at_next(reference, cell, composition, words):
    report = compare_answers(answers(*reference, composition=composition), answers(*cell, composition=composition))
    assert words in report.message()


def test_compositions_that_came_to_the_same_are_said_once():
    def reports(single, batch):
        given = {"single": single, "batch": batch}
        return [
            compare_answers(answers("abc", composition=name), answers(text, composition=name))
            for name, text in given.items()
        ]

    assert parity_messages(reports("abc", "abc")) == [
        "single and batch: 1 of 1 answers equal the reference's (3 tokens)"
    ]
    (both,) = parity_messages(reports("abX", "abX"))
    assert both.startswith("single and batch: 0 of 1")
    assert both.count("reference token") == 1
    worse, fine = parity_messages(reports("abc", "abX"))
    assert worse.startswith("batch: 0 of 1")
    assert fine.startswith("single: 1 of 1")


def test_other_compositions_are_not_compared():
    with pytest.raises(UsageError, match="'batch' with 64 new tokens cannot be compared with 'single'"):
        compare_answers(answers("abc"), answers("abc", composition="batch"))
