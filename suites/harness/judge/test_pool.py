"""What the other figures of a matrix tell of the noise of one."""

from __future__ import annotations

import numpy as np
import pytest

from mtpgate.judge.pool import FEWEST_FIGURES, SMALLEST_NOISE, moderated, pool_of, series_of


def figures(noises, launches=10, seed=1):
    rng = np.random.default_rng(seed)
    return [100 * (1 + noise * rng.standard_normal(launches)) for noise in noises]


def own_noise(values, pool):
    variance, _ = series_of(values)
    noise, freedom = moderated(variance, len(values), pool)
    return float(noise), float(freedom)


def test_figures_that_are_alike_share_one_estimate():
    values = figures([0.01] * 100)
    pool = pool_of(values)
    assert float(pool.noise) == pytest.approx(0.01, rel=0.1)
    noises = [own_noise(figure, pool)[0] for figure in values]
    own = [np.std(figure, ddof=1) / 100 for figure in values]
    assert np.std(noises) < 0.4 * np.std(own)
    assert own_noise(values[0], pool)[1] > 30


def test_figures_that_are_not_alike_keep_their_own_noise():
    values = figures([0.003] * 20 + [0.03] * 20)
    pool = pool_of(values)
    assert float(pool.freedom) < 5
    assert own_noise(values[0], pool)[0] < 0.01
    assert own_noise(values[-1], pool)[0] > 0.02


def test_the_pool_is_never_surer_than_the_launches_that_made_it():
    assert float(pool_of(figures([0.01] * 4, launches=3)).freedom) <= 8


@pytest.mark.parametrize("count", [0, FEWEST_FIGURES - 1])
def test_too_few_figures_tell_nothing(count):
    assert pool_of(figures([0.01] * count)) is None


def test_figures_with_one_or_two_launches_do_not_count():
    assert pool_of([[100.0], [100.0, 101.0]] * 10) is None


def test_equal_values_are_not_taken_for_precision():
    pool = pool_of([[100.0] * 5] * 6)
    assert own_noise(np.array([100.0] * 5), pool)[0] == SMALLEST_NOISE


def test_a_figure_with_one_launch_takes_the_pools_noise():
    pool = pool_of(figures([0.02] * 40))
    noise, freedom = moderated(np.array(0.0), 1, pool)
    assert (float(noise), float(freedom)) == (pytest.approx(float(pool.noise)), float(pool.freedom))


@pytest.mark.parametrize("true", [0.0, 0.6])
def test_the_correlation_between_nights_is_estimated(true):
    rng = np.random.default_rng(2)
    series = rng.standard_normal((60, 12))
    for night in range(1, 12):
        series[:, night] = true * series[:, night - 1] + np.sqrt(1 - true**2) * series[:, night]
    pool = pool_of(100 + series)
    assert float(pool.night_correlation) == pytest.approx(true, abs=0.12)


def test_short_series_leave_the_correlation_to_caution():
    assert float(pool_of(figures([0.01] * 10, launches=3)).night_correlation) == 0.2
