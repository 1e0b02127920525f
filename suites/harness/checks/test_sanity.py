"""What is wrong with an answer whatever the prompt was."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mtpgate.checks.answers import Answer, Answers
from mtpgate.checks.sanity import (
    SanityFinding,
    check_answers,
    check_output,
    check_record,
    find_loop,
    not_in_reference,
)
from mtpgate.load.measurement import Arrival, RequestRecord


def findings(text: str = "some words", ids: tuple[int, ...] = (1, 2, 3), **more: object) -> list[str]:
    options = {"counted": len(ids), "finish_reason": "length"} | more
    return [finding.what for finding in check_output("prose-0", text, ids, **options)]


def test_an_ordinary_answer_has_no_findings():
    assert findings() == []


@pytest.mark.parametrize("text", ["", "  \n "])
def test_no_text_is_empty(text):
    assert findings(text) == ["empty"]


def test_no_tokens_are_empty():
    assert findings("", ()) == ["empty"]


def test_a_single_blank_token_is_not_empty():
    assert findings(" ", (32,)) == []


def test_invalid_text_inside_is_found():
    assert findings("some \ufffd words") == ["invalid_text"]


@pytest.mark.parametrize(("tail", "expected"), [(1, []), (3, []), (4, ["invalid_text"])])
def test_a_character_cut_at_the_end_is_not_invalid(tail, expected):
    assert findings("word" + "\ufffd" * tail) == expected


def test_a_stuck_token_is_found():
    assert findings(ids=(1, 2, *[7] * 24, 3)) == ["stuck_token"]
    assert findings(ids=(1, 2, *[7] * 23, 3)) == []


@pytest.mark.parametrize("period", [2, 3, 16])
def test_a_loop_is_found_with_its_period(period):
    lap = tuple(range(100, 100 + period))
    assert find_loop((1, 2, *lap * 12)) == ("loop", f"the same {period} tokens 12 times in a row from 2 on")
    assert find_loop((1, 2, *lap * 11)) is None


def test_a_loop_that_ends_again_is_found():
    assert findings(ids=(*(4, 5) * 12, *range(10, 60))) == ["loop"]


def test_a_list_with_a_repeated_frame_is_no_loop():
    ids = [token for number in range(40) for token in (10, 11, 1000 + number, 12)]
    assert find_loop(ids) is None


def test_counts_that_disagree_are_found():
    assert findings(counted=4) == ["token_count"]


@pytest.mark.parametrize("reason", ["abort", ""])
def test_another_finish_reason_is_found(reason):
    assert findings(finish_reason=reason) == ["finish_reason"]


def test_stop_can_be_disallowed():
    assert findings(finish_reason="stop", allowed_reasons=("length",)) == ["finish_reason"]


def test_a_record_is_checked_by_its_own_fields():
    meta = {"finish_reason": {"type": "abort"}}
    record = RequestRecord("list-3", 0, 0.0, (Arrival(1.0, 2),), 1.0, 4, 2, "a\ufffdb", meta, output_ids=(1, 2))
    assert [str(finding).split(":")[:2] for finding in check_record(record)] == [
        ["list-3", " invalid_text"],
        ["list-3", " finish_reason"],
    ]


def test_a_stream_that_ends_at_another_count_than_meta_info_is_found():
    meta = {"finish_reason": {"type": "length"}, "completion_tokens": 3}
    record = RequestRecord("list-3", 0, 0.0, (Arrival(1.0, 2),), 1.0, 4, 2, "ab", meta, output_ids=(1, 2))
    (finding,) = check_record(record)
    assert str(finding) == "list-3: token_count: the stream ended at 2 tokens, meta_info says 3"


@pytest.mark.parametrize(
    ("tokens", "reason", "expected"),
    [(4, "length", []), (3, "stop", []), (4, "stop", []), (3, "length", ["length"]), (5, "length", ["length"])],
)
def test_an_answer_has_the_length_that_its_finish_reason_says(tokens, reason, expected):
    assert findings(ids=tuple(range(tokens)), finish_reason=reason, asked=4) == expected


@pytest.mark.parametrize("value", [None, math.nan, -math.inf])
def test_log_probabilities_that_are_no_numbers_are_found(value):
    rows = [[-0.5, 7, None], [value, 8, None]]
    assert findings(meta={"output_token_logprobs": rows}) == ["nan"]
    assert findings(meta={"input_token_logprobs": rows}) == ["nan"]
    assert findings(meta={"input_token_logprobs": [[None, 7, None], [-0.5, 8, None]]}) == []


def test_answers_are_checked_with_what_was_asked():
    short = Answer("list-3", (1, 2), "ab", "length", 2, {})
    given = Answers("batch", {"list-3": short, "list-4": replace(short, prompt_id="list-4", finish_reason="stop")}, 4)
    assert [str(finding) for finding in check_answers(given)] == [
        "list-3: length: 2 tokens of 4 that were asked for, ended by 'length'"
    ]


def test_what_the_reference_does_too_is_left_out():
    loop, other = SanityFinding("prose-0", "loop", "x"), SanityFinding("prose-1", "loop", "x")
    empty = SanityFinding("prose-0", "empty", "x")
    assert not_in_reference([loop, other, empty], [SanityFinding("prose-0", "loop", "y")]) == (other, empty)
