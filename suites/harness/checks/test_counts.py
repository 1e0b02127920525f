"""The identities of an answer's counts: they hold for every way to accept drafts, and break where a count is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpgate.checks.counts import StepCounts, derived_histogram
from mtpgate.load.measurement import Arrival
from suites.harness.checks.answering import answer_of

NUM_STEPS = 3
accepted_drafts = st.lists(st.integers(0, NUM_STEPS), min_size=1, max_size=40)


def counts(accepted: list[int], cut: int = 0) -> StepCounts:
    answer = answer_of(accepted, cut=min(cut, accepted[-1]))
    return StepCounts.of(answer.output_tokens, answer.meta)


@given(accepted_drafts, st.integers(0, NUM_STEPS))
def test_every_right_count_satisfies_them(accepted, cut):
    assert list(counts(accepted, cut).objections(NUM_STEPS)) == []


@given(accepted_drafts.filter(lambda accepted: len(accepted) > NUM_STEPS), st.integers(0, NUM_STEPS))
def test_a_count_of_one_draft_too_many_in_each_step_is_caught(accepted, cut):
    high = [drafts + 1 for drafts in accepted]
    wrong = replace(counts(high), tokens=counts(accepted, cut).tokens, proposed=None)
    assert any("the prefill 1; the answer has" in text for text in wrong.objections(NUM_STEPS))


@given(accepted_drafts, st.integers(0, NUM_STEPS), st.integers(1, 5))
def test_correct_drafts_that_are_not_in_the_histogram_are_caught(accepted, cut, more):
    right = counts(accepted, cut)
    wrong = replace(right, correct=(right.correct or 0) + more, proposed=None)
    assert any("the histogram has" in text for text in wrong.objections(NUM_STEPS))


@given(accepted_drafts, st.integers(1, 5))
def test_steps_that_are_not_in_the_histogram_are_caught(accepted, more):
    right = counts(accepted)
    wrong = replace(right, verify_steps=(right.verify_steps or 0) + more)
    assert any("spec_verify_ct is" in text for text in wrong.objections(NUM_STEPS))


@given(accepted_drafts, st.integers(0, NUM_STEPS))
def test_tokens_that_were_lost_after_they_were_counted_are_caught(accepted, cut):
    right = counts(accepted, cut)
    lost = replace(right, tokens=right.tokens - NUM_STEPS - 1)
    assert any("the cut last step explains 0 to 3 fewer" in text for text in lost.objections(NUM_STEPS))


def test_without_drafts_and_histogram_the_tokens_of_a_step_are_bounded():
    assert list(StepCounts(25, 6).objections(NUM_STEPS)) == []
    assert "more than the 4 a step" in next(StepCounts(26, 6).objections(NUM_STEPS))
    assert "less than one token a step" in next(StepCounts(5, 6).objections(NUM_STEPS))


def test_a_step_beyond_num_steps_is_caught_though_all_sums_agree():
    wrong = StepCounts(tokens=9, verify_steps=4, correct=4, histogram=(3, 0, 0, 0, 1))
    assert list(wrong.objections(NUM_STEPS)) == ["the histogram has a step with 4 correct drafts, num_steps is 3"]


def test_more_drafts_than_proposed_are_caught():
    wrong = StepCounts(tokens=5, verify_steps=2, correct=2, proposed=1)
    assert list(wrong.objections(NUM_STEPS)) == ["2 correct drafts of 1 that were proposed"]


def test_the_prefill_after_a_retraction_yields_a_token_too():
    right = counts([3, 0, 2, 1])
    again = replace(right, tokens=right.tokens + 1, retractions=1)
    assert list(again.objections(NUM_STEPS)) == []
    assert list(replace(again, retractions=0).objections(NUM_STEPS))


@pytest.mark.parametrize("value", ["8", None, 2.5, True, -1])
def test_a_count_of_another_type_is_missing(value):
    assert StepCounts.of(24, {"spec_verify_ct": value}).verify_steps is None
    assert StepCounts.of(24, {"spec_correct_drafts_histogram": [1, value]}).histogram in (None, (1, 1))


@given(st.lists(st.integers(0, 1), min_size=1, max_size=40))
def test_with_one_draft_a_step_the_histogram_follows_from_the_counts(accepted):
    right = counts(accepted)
    assert derived_histogram(right, 1) == (accepted.count(0), accepted.count(1))


@given(accepted_drafts)
def test_a_stream_with_an_event_for_each_step_has_the_histogram_in_it(accepted):
    answer = answer_of(accepted)
    sizes = [1, *(drafts + 1 for drafts in accepted)]
    arrivals = [Arrival(float(number), sum(sizes[: number + 1])) for number in range(len(sizes))]
    found = derived_histogram(StepCounts(answer.output_tokens, len(accepted)), NUM_STEPS, arrivals)
    assert list(found) == answer.meta["spec_correct_drafts_histogram"]
    assert derived_histogram(StepCounts(answer.output_tokens, len(accepted)), NUM_STEPS, arrivals[:-1]) is None
