"""The bounds against their formulas and against simulated launches."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mtpgate.judge.bounds import (
    both_exceed,
    launch_error,
    mean_variance,
    nights_error,
    pair_correlation,
    pair_power_quantile,
    pair_quantile,
    single_quantile,
)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("freedom", [1e7, 30.0, 4.0])
def test_the_probability_that_both_exceed_is_that_of_simulated_pairs(correlation, freedom):
    rng, count, quantile = np.random.default_rng(1), 400_000, 1.5
    scale = np.sqrt(rng.chisquare(freedom, count) / freedom)
    first = rng.standard_normal(count)
    second = correlation * first + np.sqrt(1 - correlation**2) * rng.standard_normal(count)
    seen = np.mean((first / scale > quantile) & (second / scale > quantile))
    expected = float(both_exceed(quantile, correlation, freedom))
    assert seen == pytest.approx(expected, abs=4 * np.sqrt(expected / count))


@pytest.mark.parametrize("freedom", [2.0, 9.0, 1e7])
def test_of_two_equal_values_both_exceed_as_often_as_one(freedom):
    assert float(both_exceed(3.0, 1.0, freedom)) == pytest.approx(stats.t.sf(3.0, freedom), rel=1e-6)


def test_independent_normal_values_both_exceed_with_the_square():
    assert float(both_exceed(2.0, 0.0, 1e9)) == pytest.approx(stats.norm.sf(2.0) ** 2, rel=1e-5)


@pytest.mark.parametrize("alpha", [0.01, 1e-5])
@pytest.mark.parametrize("freedom", [1.0, 3.0, 50.0, np.inf])
def test_the_pair_quantile_is_exceeded_with_its_probability(alpha, freedom):
    quantile = pair_quantile(0.4, freedom, alpha)
    assert float(both_exceed(quantile, 0.4, min(freedom, 1e7))) == pytest.approx(alpha, rel=1e-6)


def test_many_pair_quantiles_at_once_are_those_one_by_one():
    freedoms = np.array([[3.0, np.inf], [20.0, 3.0]])
    one_by_one = [[float(pair_quantile(0.5, freedom, 1e-4)) for freedom in row] for row in freedoms]
    np.testing.assert_allclose(pair_quantile(0.5, freedoms, 1e-4), one_by_one)


def test_a_confirmed_breach_needs_less_than_a_single_one():
    assert float(pair_quantile(0.5, 20, 1e-4)) < float(single_quantile(20, 1e-4))


@pytest.mark.parametrize("correlation", [0.1, 0.5])
def test_the_pair_power_quantile_leaves_both_above_with_its_power(correlation):
    found = pair_power_quantile(correlation, 0.9)
    both = stats.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]]).cdf([found, found])
    assert both == pytest.approx(0.9, abs=1e-4)


def test_independent_nights_average_as_usual():
    assert float(mean_variance(5)) == pytest.approx(1 / 5)
    assert float(launch_error(10)) == pytest.approx(np.sqrt(1 + 1 / 10))
    assert float(nights_error(10, 5)) == pytest.approx(np.sqrt(1 / 5 + 1 / 10))


def test_the_mean_of_nights_that_resemble_each_other_varies_more():
    lags = [0.36 ** ((lag + 1) / 2) for lag in (1, 2)]
    assert float(mean_variance(3, 0.36)) == pytest.approx((1 + 2 * (2 / 3 * lags[0] + 1 / 3 * lags[1])) / 3)


def test_a_relaunch_is_less_news_where_nights_resemble_each_other():
    assert float(pair_correlation(10, 0.0)) == pytest.approx(0.6 / 1.1)
    assert float(pair_correlation(10, 0.6)) > float(pair_correlation(10, 0.0))
