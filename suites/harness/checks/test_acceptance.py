"""Acceptance from counts, and what is wrong with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mtpgate.checks.acceptance import judge_acceptance
from mtpgate.checks.answers import Answer
from mtpgate.matrix.cell import Cell, Speculation
from suites.harness.checks.answering import answer_of, meta_of

EAGLE = Speculation("EAGLE", num_steps=3, eagle_topk=1, num_draft_tokens=4)


def cell(floor: float | None = None, speculation: Speculation | None = EAGLE) -> Cell:
    return Cell("eagle-s3-k1-d4", {}, speculation=speculation, accept_length_floor=floor)


def answer(tokens: int, steps: int | None, prompt: str = "prose-0", **more: object) -> Answer:
    meta = more if steps is None else {"spec_verify_ct": steps, **more}
    return Answer(prompt, tuple(range(tokens)), "x" * tokens, "length", tokens, meta)


def test_the_accept_length_is_tokens_by_steps_over_all_requests():
    report = judge_acceptance(cell(), [answer(90, 30), answer(10, 10, "code-1")])
    assert report.ok
    assert report.accept_length == pytest.approx(100 / 40)


def test_each_kind_has_its_own_accept_length():
    report = judge_acceptance(cell(), [answer(90, 30), answer(60, 30, "prose-7"), answer(24, 20, "code-1")])
    assert {kind: counts.accept_length for kind, counts in report.by_kind.items()} == {"prose": 2.5, "code": 1.2}
    assert "by kind: code 1.20, prose 2.50" in report.message()


def test_the_rate_comes_from_the_counts_of_drafts():
    drafts = {"spec_num_proposed_drafts": 90, "spec_num_correct_drafts": 60}
    report = judge_acceptance(cell(), [answer(91, 30, **drafts)])
    assert report.overall.accept_rate == pytest.approx(60 / 90)


SPREAD = [answer(91, 30 + 3 * (number % 3), f"prose-{number}") for number in range(9)]  # 2.5 to 3.0, mean 2.76


@pytest.mark.parametrize(("floor", "state"), [(2.0, "ok"), (2.5, "ok"), (2.7, "undecided"), (2.8, "undecided")])
def test_the_floor_is_met_only_if_all_of_the_interval_is_above_it(floor, state):
    report = judge_acceptance(cell(floor), SPREAD)
    assert report.ok
    assert ("ok" if report.undecided is None else "undecided") == state
    if report.undecided:
        assert f"the floor of {floor:.2f} lies inside the interval" in report.message()


def test_it_is_below_the_floor_only_if_all_of_the_interval_is():
    report = judge_acceptance(cell(3.2), SPREAD)
    assert not report.ok and report.undecided is None
    assert "accept length 2.76 is below the cell's floor of 3.20, and so is all of its interval" in report.message()


@pytest.mark.parametrize(("steps", "named"), [(90, True), (60, False)])
def test_a_head_that_drafts_by_chance_is_named_as_what_to_look_at(steps, named):
    report = judge_acceptance(cell(2.0), [answer(100, steps, f"prose-{number}") for number in range(4)])
    assert ("The draft head is not loaded, has random weights" in report.message()) == named
    assert "below the cell's floor of 2.00" in report.message()


def test_a_single_prompt_cannot_decide_about_the_floor():
    report = judge_acceptance(cell(2.0), [answer(90, 30), answer(90, 30)])
    assert report.ok and "a single prompt has no interval" in report.undecided


def test_without_a_floor_nothing_is_undecided():
    assert judge_acceptance(cell(), [answer(90, 30)]).undecided is None


@pytest.mark.parametrize(("tokens", "steps"), [(24, 23), (24, 24), (64, 63)])
def test_no_accepted_draft_at_all_is_an_alarm_even_where_the_quotient_is_above_one(tokens, steps):
    report = judge_acceptance(cell(), [answer(tokens, steps), answer(tokens, steps, "code-1")])
    assert "no draft token was ever accepted" in report.message()


def test_answers_that_lost_their_accepted_tokens_are_said_to_be_that_and_nothing_else():
    """As the real engine counts when it drops the bonus token after each accepted draft."""
    report = judge_acceptance(cell(), [answer(32, 31, spec_num_correct_drafts=27)])
    (finding,) = report.findings
    assert "31 verify steps and 27 correct drafts make 58 tokens" in finding


def test_one_accepted_draft_is_no_such_alarm():
    assert judge_acceptance(cell(), [answer(24, 23), answer(24, 22, "code-1")]).ok


def test_missing_keys_are_a_finding():
    report = judge_acceptance(cell(2.0), [answer(24, None), answer(24, None)])
    assert report.accept_length is None
    assert "2 of 2 answers lack spec_verify_ct" in report.message()


def test_keys_that_some_answers_lack_are_a_finding():
    report = judge_acceptance(cell(), [answer(24, 8), answer(24, None)])
    assert "1 of 2 answers lack spec_verify_ct" in report.message()
    assert report.accept_length == 3.0


def test_an_answer_of_one_token_needs_no_keys():
    assert judge_acceptance(cell(), [answer(24, 8), answer(1, None)]).ok


def test_nothing_to_read_from_is_a_finding():
    assert "no answer of at least 2 tokens" in judge_acceptance(cell(), [answer(1, None)]).message()


def test_more_tokens_a_step_than_the_drafts_allow_are_a_finding():
    assert judge_acceptance(cell(), [answer(25, 6)]).ok
    report = judge_acceptance(cell(), [answer(26, 6)])
    assert "26 tokens in 6 verify steps is more than the 4 a step" in report.message()


def test_a_server_that_counts_the_bonus_token_as_a_draft_is_caught():
    right = [answer_of([1, 0, 2, 3, 1, 0] * 3, prompt=f"prose-{number}") for number in range(4)]
    assert judge_acceptance(cell(), right).ok
    wrong = [replace(item, meta=item.meta | meta_of([2, 1, 3, 4, 2, 1] * 3, num_steps=4)) for item in right]
    text = judge_acceptance(cell(1.2), wrong).message()
    assert "the counts are wrong, and so is any accept length made of them (4 of 4 answers)" in text
    assert "18 verify steps and 39 correct drafts make 57 tokens, and the prefill 1; the answer has 40" in text


def test_the_histogram_is_summed_and_shown_as_shares():
    report = judge_acceptance(cell(), [answer_of([3, 0, 0, 1]), answer_of([3, 3, 0, 0], prompt="code-1")])
    assert report.overall.histogram == (4, 1, 0, 3)
    assert "steps by accepted drafts: 0: 50%, 1: 12%, 2: 0%, 3: 38%" in report.message()


def test_the_figures_hold_interval_and_histogram_by_kind():
    figures = judge_acceptance(cell(1.2), [answer_of([3, 0, 0, 1]), answer_of([3, 3, 0, 0], prompt="code-1")]).figures()
    assert figures["kinds"]["code"]["histogram"] == [2, 0, 0, 2]
    assert figures["interval"][0] <= figures["accept_length"] <= figures["interval"][1]
    assert figures["kinds"]["code"]["interval"] is None


def test_a_finding_comes_before_the_figures():
    lines = judge_acceptance(cell(), [answer(24, 23)]).message().splitlines()
    assert lines[0].startswith("eagle-s3-k1-d4: no draft token was ever accepted")
    assert lines[1].startswith("  accept length 1.04 tokens a verify step")


def test_a_cell_without_speculation_has_no_accept_length_and_no_finding():
    report = judge_acceptance(cell(speculation=None), [answer(24, None)])
    assert report.ok and report.accept_length is None


def test_a_cell_without_speculation_that_speculates_is_a_finding():
    report = judge_acceptance(cell(speculation=None), [answer(24, 8)])
    assert "asks for no speculation" in report.message()


@pytest.mark.parametrize("value", ["8", None, 2.5, True])
def test_a_count_of_another_type_counts_as_missing(value):
    report = judge_acceptance(cell(), [answer(24, None, spec_verify_ct=value)])
    assert "lack spec_verify_ct" in report.message()
