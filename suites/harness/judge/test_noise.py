"""Where the noise of a figure is from, and what it lets be seen."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from mtpgate.judge.noise import more_launches, noise_of
from mtpgate.judge.pool import SMALLEST_NOISE, pool_of
from mtpgate.judge.rule import NIGHTS
from suites.harness.judge.synthetic import launch

ALPHA = 0.001
QUIET = (100.0, 100.0, 100.0)
POOL = pool_of(100 * (1 + 0.01 * np.random.default_rng(1).standard_normal((40, 10))))


def launches(values, repeats=QUIET):
    return [launch(value, repeats=repeats) for value in values]


def chance(noise):
    return float(noise.limits(alpha=ALPHA, minimum_effect=0.0).chance)


def test_with_the_matrix_other_figures_the_noise_is_theirs_and_its_own():
    noise = noise_of(launches([99.0, 100.0, 101.0]), QUIET, alpha=ALPHA, pool=POOL)
    assert noise.relative == pytest.approx(0.01, rel=0.2) and noise.freedom > 10
    assert noise.source.endswith("from 3 launches and 40 figures")


def test_the_pool_sees_more_than_a_figures_own_launches():
    values = launches([99.0, 100.0, 101.0, 99.5, 100.5])
    alone, pooled = (noise_of(values, QUIET, alpha=ALPHA, pool=pool) for pool in (None, POOL))
    assert chance(pooled) < chance(alone)


def test_alone_the_spread_of_equal_launches_is_floored():
    noise = noise_of(launches([100.0] * 10), QUIET, alpha=ALPHA)
    assert noise.relative == SMALLEST_NOISE and noise.freedom == 9


@pytest.mark.parametrize("count", [1, 2])
def test_alone_few_launches_are_judged_by_the_declared_noise(count):
    noise = noise_of(launches([100.0] * count), QUIET, alpha=ALPHA, assumed=0.04)
    assert (noise.relative, noise.freedom) == (0.04, math.inf)
    assert "4.0% declared" in noise.source


def test_the_spread_of_the_repeats_raises_the_declared_noise():
    wild = (80.0, 100.0, 120.0)
    noise = noise_of(launches([100.0], wild), wild, alpha=ALPHA)
    assert noise.relative == pytest.approx(0.2 * math.sqrt(math.pi / 6))
    assert "spread of the repeats" in noise.source


def test_launches_that_refute_the_declared_noise_are_believed():
    values = [80.0, 120.0, 90.0, 110.0, 100.0]
    noise = noise_of(launches(values), QUIET, alpha=ALPHA)
    assert noise.estimated and noise.relative == pytest.approx(stats.tstd(values) / 100.0)


def test_more_launches_of_a_quiet_machine_never_widen_the_bound():
    values = [99.5, 100.5, 100.0] * 4
    found = [chance(noise_of(launches(values[:count]), QUIET, alpha=ALPHA)) for count in range(1, 13)]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("drop", [-0.001, 0.001])
def test_the_findable_drop_is_found_by_both_launches_with_its_power(drop):
    noise = noise_of(launches([100.0] * 3), QUIET, alpha=ALPHA, pool=POOL)
    limits = noise.limits(alpha=ALPHA, minimum_effect=0.0)
    rng = np.random.default_rng(1)
    means = 1 + noise.relative * math.sqrt(1 / 3) * rng.standard_normal(40_000)
    values = 1 - float(limits.findable) - drop + noise.relative * rng.standard_normal((2, 40_000))
    found = np.mean((values < means - float(limits.limit)).all(axis=0))
    # The night correlation makes the baseline's mean a little less certain than it is here.
    assert found == pytest.approx(0.9, abs=0.04)


@pytest.mark.parametrize("accepted", [1, 3, 10])
@pytest.mark.parametrize("true_noise", [0.01, 0.03])
def test_alone_a_launch_and_its_relaunch_breach_together_no_more_often_than_allowed(accepted, true_noise):
    rng = random.Random(2)
    alpha, nights, alarms = 0.02, 600, 0
    for _ in range(nights):
        values = [rng.gauss(100, 100 * true_noise) for _ in range(accepted)]
        noise = noise_of(launches(values), QUIET, alpha=alpha)
        limit = sum(values) / accepted * (1 - float(noise.limits(alpha=alpha, minimum_effect=0.0).chance))
        alarms += all(rng.gauss(100, 100 * true_noise) < limit for _ in range(2))
    # Three standard errors above twice the share of tonight's test.
    assert alarms / nights < alpha + 3 * math.sqrt(alpha / nights)


def test_as_many_launches_as_advised_make_the_effect_findable_and_one_fewer_does_not():
    noise = noise_of(launches([100.0]), QUIET, alpha=ALPHA, pool=POOL)
    more = more_launches(noise, 0.03, alpha=ALPHA)
    assert more is not None and more > 0
    for count, enough in ((more, True), (more - 1, False)):
        grown = replace(noise, freedom=noise.freedom + count, launches=1 + count)
        assert grown.sees(0.03, alpha=ALPHA, nights=NIGHTS) is enough


def test_where_more_nights_do_no_more_launches_are_asked_for():
    noise = noise_of(launches([99.0, 100.0, 101.0] * 4), QUIET, alpha=ALPHA, pool=POOL)
    assert not noise.sees(0.03, alpha=ALPHA, nights=1)
    assert more_launches(noise, 0.03, alpha=ALPHA) == 0


def test_no_number_of_launches_helps_against_too_much_noise():
    assert more_launches(noise_of([launch(100.0)], QUIET, alpha=ALPHA), 0.005, alpha=ALPHA) is None
