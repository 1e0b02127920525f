"""States and words of a verdict."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mtpgate.judge.verdict import alpha_for, confirm, judge
from suites.harness.judge.synthetic import launch, measurement

ONE = [launch(100.0)]
TEN = [launch(value) for value in (99.0, 99.3, 99.6, 99.9, 100.0, 100.0, 100.1, 100.4, 100.7, 101.0)]
CPU = {"minimum_effect": 0.15, "alpha": alpha_for(8)}


def test_an_engine_slowed_by_30_percent_is_a_regression_against_one_launch():
    verdict = judge(measurement(100.0 / 1.3), ONE, **CPU)
    assert verdict.state == "regression" and verdict.red
    assert verdict.effect == pytest.approx(1 / 1.3 - 1)


@pytest.mark.parametrize("value", [94.0, 100.0, 106.0])
def test_one_launch_cannot_make_a_pass_and_says_what_it_could_have_seen(value):
    verdict = judge(measurement(value), ONE, **CPU)
    assert verdict.state == "insufficient" and not verdict.green and not verdict.red
    assert f"a drop of {verdict.findable_drop:.1%} would have been found" in verdict.text
    assert "accept 2 more launches" in verdict.text


def test_as_many_launches_as_it_asks_for_make_a_pass():
    verdict = judge(measurement(100.0), [launch(98.0), launch(102.0), launch(100.0)], **CPU)
    assert verdict.state == "pass" and verdict.green
    assert verdict.findable_drop <= 0.15
    assert f"a drop of {verdict.findable_drop:.1%} would have been found" in verdict.text


def test_with_ten_launches_a_drop_of_5_percent_is_found():
    assert judge(measurement(95.0), TEN).state == "regression"


def test_a_drop_outside_the_bound_but_below_the_minimum_effect_is_no_regression():
    quiet = [launch(100.0)] * 10
    assert judge(measurement(96.0), quiet, minimum_effect=0.03).state == "regression"
    assert judge(measurement(96.0), quiet, minimum_effect=0.05).state == "pass"


def test_a_drop_inside_the_bound_is_no_regression_however_small_the_minimum_effect():
    assert judge(measurement(98.0), TEN, minimum_effect=0.001).state == "insufficient"


def test_a_gain_beyond_the_bound_says_that_the_baseline_is_stale():
    verdict = judge(measurement(110.0), TEN)
    assert verdict.state == "improvement" and verdict.green
    assert "the baseline is stale" in verdict.text


def test_without_a_baseline_nothing_passes():
    verdict = judge(measurement(100.0), [])
    assert verdict.state == "no_baseline" and not verdict.green and not verdict.red
    assert "no baseline" in verdict.text


@pytest.mark.parametrize("value", [100.0, 50.0, math.nan])
def test_a_void_measurement_is_not_judged(value):
    verdict = judge(measurement(value, void="request prose-0 failed: cut"), ONE)
    assert verdict.state == "void" and "request prose-0 failed: cut" in verdict.text


def test_a_measurement_without_figures_is_void():
    assert judge(replace(measurement(math.nan), repeats=()), ONE).state == "void"


def test_a_baseline_too_noisy_for_the_effect_is_said_to_be_so():
    wild = [launch(value) for value in (80.0, 120.0, 90.0, 110.0, 100.0)]
    verdict = judge(measurement(85.0), wild, **CPU)
    assert verdict.state == "insufficient"
    assert "too noisy for the declared minimum effect" in verdict.text


def test_the_text_has_value_bound_baseline_and_effect():
    text = judge(measurement(77.0), ONE, **CPU).text
    for words in ("C1: regression: 77.0 tok/s", "23.0% below", "100.0 (1 launch)", "bound 85.0 tok/s", "effect 15.0%"):
        assert words in text


@pytest.mark.parametrize(
    ("value", "accept_length", "moved", "step_time"),
    [(75.0, 2.0, "step time", 1 / 0.75), (75.0, 1.5, "acceptance", 1.0), (60.0, 1.55, "both", 0.775 / 0.6)],
)
def test_a_change_is_split_into_acceptance_and_step_time(value, accept_length, moved, step_time):
    verdict = judge(measurement(value, accept_length=accept_length), [launch(100.0, accept_length=2.0)], **CPU)
    assert verdict.split.moved == moved
    assert verdict.split.step_time == pytest.approx(step_time)
    assert verdict.split.acceptance == pytest.approx(accept_length / 2.0)
    assert f"{moved} moved" in verdict.text


def test_throughput_is_acceptance_by_step_time():
    split = judge(measurement(83.0, accept_length=1.7), [launch(100.0, accept_length=2.0)], **CPU).split
    assert split.throughput == pytest.approx(split.acceptance / split.step_time)


def test_without_accept_lengths_there_is_no_split():
    verdict = judge(measurement(70.0), ONE, **CPU)
    assert verdict.split is None and "counts as step time" in verdict.text


def test_two_breaches_stand():
    bad = judge(measurement(70.0), ONE, **CPU)
    verdict = confirm(bad, judge(measurement(72.0), ONE, **CPU))
    assert verdict.state == "regression" and verdict.value == 72.0
    assert "confirmed by a relaunch" in verdict.text


@pytest.mark.parametrize("second", [measurement(100.0), measurement(100.0, void="cut")])
def test_a_relaunch_that_does_not_breach_makes_it_unstable(second):
    verdict = confirm(judge(measurement(70.0), ONE, **CPU), judge(second, ONE, **CPU))
    assert verdict.state == "unstable" and not verdict.green and not verdict.red


def test_only_a_regression_needs_confirmation():
    first = judge(measurement(100.0), ONE, **CPU)
    assert confirm(first, judge(measurement(70.0), ONE, **CPU)) is first
