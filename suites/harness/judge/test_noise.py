"""The bounds against their formulas and against simulated launches."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from mtpgate.judge.noise import SMALLEST_NOISE, more_launches, noise_of
from suites.harness.judge.synthetic import launch

ALPHA = 0.001
QUIET = (100.0, 100.0, 100.0)


def test_the_sample_bound_is_the_prediction_bound():
    values = [98.0, 99.0, 100.0, 101.0, 102.0, 100.0, 99.5, 100.5]
    noise = noise_of([launch(value, repeats=QUIET) for value in values], QUIET, alpha=ALPHA)
    mean = sum(values) / 8
    s = math.sqrt(sum((value - mean) ** 2 for value in values) / 7) / mean
    assert noise.margin == pytest.approx(stats.t.ppf(1 - ALPHA, 7) * s * math.sqrt(1 + 1 / 8))


def test_the_spread_of_equal_launches_is_floored():
    noise = noise_of([launch(100.0, repeats=QUIET)] * 10, QUIET, alpha=ALPHA)
    assert noise.relative == SMALLEST_NOISE


@pytest.mark.parametrize("launches", [1, 2])
def test_few_launches_are_judged_by_the_declared_noise(launches):
    noise = noise_of([launch(100.0, repeats=QUIET)] * launches, QUIET, alpha=ALPHA, assumed=0.04)
    assert noise.margin == pytest.approx(stats.norm.ppf(1 - ALPHA) * 0.04 * math.sqrt(1 + 1 / launches))
    assert "4.0% declared" in noise.source


def test_the_spread_of_the_repeats_raises_the_declared_noise():
    wild = (80.0, 100.0, 120.0)
    noise = noise_of([launch(100.0, repeats=wild)], wild, alpha=ALPHA)
    assert noise.relative == pytest.approx(0.2 * math.sqrt(math.pi / 6))
    assert "spread of the repeats" in noise.source


def test_more_launches_of_a_quiet_machine_never_widen_the_bound():
    margins = [
        noise_of([launch(value, repeats=QUIET) for value in [99.5, 100.5, 100.0] * 4][:n], QUIET, alpha=ALPHA).margin
        for n in range(1, 13)
    ]
    assert margins == sorted(margins, reverse=True)


def test_launches_that_refute_the_declared_noise_are_believed():
    values = [80.0, 120.0, 90.0, 110.0, 100.0]
    noise = noise_of([launch(value, repeats=QUIET) for value in values], QUIET, alpha=ALPHA)
    assert noise.estimated and noise.relative == pytest.approx(stats.tstd(values) / 100.0)
    assert noise.margin > 0.5


def test_the_findable_drop_is_found_with_its_power():
    noise = noise_of([launch(100.0, repeats=QUIET)], QUIET, alpha=ALPHA)
    rng = random.Random(1)
    found = 0
    for _ in range(4000):
        mean, value = rng.gauss(100, 3), rng.gauss(100 * (1 - noise.findable_drop), 3)
        found += value < mean * (1 - noise.margin)
    assert found / 4000 == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize("launches", [1, 3, 10])
@pytest.mark.parametrize("true_noise", [0.01, 0.03])
def test_false_alarms_stay_below_twice_alpha(launches, true_noise):
    rng = random.Random(2)
    alpha, nights, alarms = 0.02, 1000, 0
    for _ in range(nights):
        values = [rng.gauss(100, 100 * true_noise) for _ in range(launches)]
        noise = noise_of([launch(value, repeats=QUIET) for value in values], QUIET, alpha=alpha)
        mean = sum(values) / launches
        alarms += rng.gauss(100, 100 * true_noise) < mean * (1 - noise.margin)
    # Three standard errors above 2 alpha.
    assert alarms / nights < 2 * alpha + 3 * math.sqrt(2 * alpha / nights)


def test_as_many_launches_as_advised_make_the_effect_findable():
    one = [launch(100.0, repeats=QUIET)]
    noise = noise_of(one, QUIET, alpha=ALPHA)
    effect = noise.findable_drop * 0.85
    more = more_launches(noise, effect, alpha=ALPHA)
    assert more is not None
    wide = [launch(value, repeats=QUIET) for value in [96.8, 103.2, 100.0] * 20]
    assert noise_of(wide[: 1 + more], QUIET, alpha=ALPHA).findable_drop <= effect * 1.1


def test_no_number_of_launches_helps_against_too_much_noise():
    assert more_launches(noise_of([launch(100.0)], QUIET, alpha=ALPHA), 0.01, alpha=ALPHA) is None
