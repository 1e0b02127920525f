"""States and words of a verdict."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mtpgate.judge.pool import pool_of
from mtpgate.judge.verdict import Night, alpha_for, confirm, judge
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
    assert "accept 1 more launch and measure 4 more nights" in verdict.text


def test_as_many_launches_and_nights_as_it_asks_for_make_a_pass():
    two = [launch(99.0), launch(101.0)]
    verdict = judge(measurement(100.0), two, nights=[Night(100.0)] * 4, **CPU)
    assert verdict.state == "pass" and verdict.green
    assert verdict.nights.findable_drop <= 0.15
    assert f"one of {verdict.nights.findable_drop:.1%} over these 5 nights (power 0.9)" in verdict.text


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
    assert "confirmed by a relaunch; the first launch was 70.0" in verdict.text


@pytest.mark.parametrize(
    ("second", "again"), [(measurement(100.0), "100.0 tok/s"), (measurement(100.0, void="cut"), "void")]
)
def test_a_relaunch_that_does_not_breach_makes_it_unstable_and_both_are_told(second, again):
    verdict = confirm(judge(measurement(70.0), ONE, **CPU), judge(second, ONE, **CPU))
    assert verdict.state == "unstable" and not verdict.green and not verdict.red
    first_line, *rest = verdict.text.splitlines()
    assert f"C1: unstable: 70.0 tok/s breached and the relaunch's {again} did not confirm it" in first_line
    assert rest[0].startswith("1st launch: regression: 70.0 tok/s")
    assert any(line.startswith("2nd launch: ") for line in rest)


def test_a_void_relaunch_leaves_the_first_launchs_figures():
    first = judge(measurement(70.0), ONE, **CPU)
    assert confirm(first, judge(measurement(math.nan, void="cut"), ONE, **CPU)).value == 70.0


def test_only_a_regression_needs_confirmation():
    first = judge(measurement(100.0), ONE, **CPU)
    assert confirm(first, judge(measurement(70.0), ONE, **CPU)) is first


POOL = pool_of(100 * (1 + 0.01 * np.random.default_rng(1).standard_normal((40, 10))))
SLOWER = [Night(97.4), Night(96.9), Night(97.2), Night(97.6)]


def over(nights, value=97.2, **more):
    return judge(measurement(value, accept_length=more.pop("accept_length", None)), TEN, nights=nights, **more)


def test_nights_that_breach_together_are_a_regression_though_tonight_alone_is_none():
    verdict = over(SLOWER, pool=POOL)
    assert verdict.state == "regression" and verdict.breaches == ("nights",)
    assert verdict.nights.mean == pytest.approx((97.4 + 96.9 + 97.2 + 97.6 + 97.2) / 5)
    assert "regression over 5 nights: their mean of 97.3 tok/s is 2.7% below the first baseline's 100.0" in verdict.text
    assert "tonight's 97.2 alone is no breach" in verdict.text


def test_the_first_of_such_nights_is_none():
    assert over([], pool=POOL).state == "insufficient"
    assert over([Night(100.0)] * 4, pool=POOL).state == "pass"


def test_nights_that_breach_because_of_one_are_no_regression():
    wild = [Night(100.1), Night(86.0), Night(99.9), Night(100.2)]
    verdict = over(wild, value=100.0, pool=POOL)
    assert verdict.nights.effect < -0.025
    assert verdict.state == "pass"


def test_a_baseline_that_followed_a_slow_drift_does_not_hide_it():
    """Each accepted launch is a little slower than the one before, so that the mean of all follows."""
    drifting = [launch(100.0 - 0.25 * night) for night in range(26)]
    tonight, before = 93.5, [Night(94.3), Night(94.0), Night(93.9), Night(93.7)]
    verdict = judge(measurement(tonight), drifting, nights=before, pool=POOL, minimum_effect=0.05)
    assert verdict.state == "regression"
    assert verdict.nights.first_mean == pytest.approx(98.875) and verdict.nights.first_n == 10
    assert "nights" in verdict.breaches


def test_a_drift_is_split_too():
    accepted = [launch(100.0, accept_length=2.0)] * 10
    nights = [Night(97.0, 1.94)] * 4
    verdict = judge(measurement(97.2, accept_length=1.944), accepted, nights=nights, pool=POOL)
    assert verdict.nights.split.moved == "acceptance"
    assert "acceptance moved: accept length x0.970, step time x1.0" in verdict.text


def test_a_drift_is_confirmed_by_the_mean_of_tonights_launches():
    first = over(SLOWER, pool=POOL)
    still = over(SLOWER, value=98.2, pool=POOL, first_launch=measurement(97.2))
    assert still.nights.mean == pytest.approx((97.4 + 96.9 + 97.2 + 97.6 + 97.7) / 5)
    assert confirm(first, still).red
    gone = over(SLOWER, value=106.0, pool=POOL, first_launch=measurement(97.2))
    assert confirm(first, gone).state == "unstable"


def test_a_breach_tonight_is_not_confirmed_by_the_nights_alone():
    verdict = judge(measurement(70.0), ONE, **CPU)
    assert confirm(verdict, replace(verdict, breaches=("nights",))).state == "unstable"


def test_more_nights_than_the_rule_looks_at_make_no_difference():
    assert over([Night(50.0)] * 10 + SLOWER, pool=POOL) == over(SLOWER, pool=POOL)


def test_launches_of_one_day_are_told_as_such():
    assert "(10 launches of 1 day)" in judge(measurement(100.0), TEN).text
