"""Figures from raw timestamps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mtpgate.errors import UsageError
from mtpgate.load.figures import (
    NAMES,
    accept_length,
    chunk_gap_seconds,
    distribution,
    distributions,
    end_to_end_seconds,
    itl_seconds,
    output_tokens_per_second,
    percentile,
    tokens_per_event,
    tpot_seconds,
    ttft_seconds,
)
from mtpgate.load.measurement import Arrival, RequestRecord
from mtpgate.load.steady import steady_state


def record(*arrivals: tuple[float, int], sent: float = 10.0, **meta: object) -> RequestRecord:
    pieces = tuple(Arrival(time, count) for time, count in arrivals)
    tokens = pieces[-1].completion_tokens if pieces else 0
    return RequestRecord("prose-0", 0, sent, pieces, 99.0, 4, tokens, "", meta)


def test_ttft_ends_at_the_first_event():
    assert ttft_seconds(record((10.25, 1), (10.5, 2))) == 0.25


def test_tpot_leaves_out_the_tokens_of_the_first_event():
    assert tpot_seconds(record((1.0, 8), (8.0, 64))) == 7.0 / 56


def test_tpot_of_a_single_event_does_not_exist():
    assert tpot_seconds(record((1.0, 8))) is None


def test_a_request_without_tokens_has_no_figures():
    empty = record()
    assert (ttft_seconds(empty), tpot_seconds(empty), itl_seconds(empty), tokens_per_event(empty)) == (
        None,
        None,
        (),
        (),
    )


def test_itl_has_one_sample_a_token_that_share_the_gap():
    assert itl_seconds(record((1.0, 2), (2.0, 3), (5.0, 6))) == (1.0, 1.0, 1.0, 1.0)


def test_the_mean_of_the_itl_is_the_tpot():
    one = record((1.0, 3), (1.5, 4), (4.0, 9))
    assert sum(itl_seconds(one)) / len(itl_seconds(one)) == pytest.approx(tpot_seconds(one))


def test_tokens_per_event_count_the_first_one():
    assert tokens_per_event(record((1.0, 3), (1.5, 4), (4.0, 9))) == (3, 1, 5)


def test_a_chunk_gap_is_not_shared_by_its_tokens():
    assert chunk_gap_seconds(record((1.0, 2), (2.0, 3), (5.0, 6))) == (1.0, 3.0)


def test_end_to_end_and_rate_of_one_request():
    one = record((12.0, 3), (14.0, 8), sent=9.0)
    assert end_to_end_seconds(one) == 90.0
    assert output_tokens_per_second(one) == 8 / 90


def test_a_distribution_leaves_out_the_tails_that_it_is_too_small_for():
    small, large = distribution([1.0] * 19), distribution([float(value) for value in range(100)])
    assert (small.samples, small.p50, small.p90, small.p95, small.p99) == (19, 1.0, 1.0, None, None)
    assert (large.mean, large.p50, large.p99) == (49.5, 49.5, pytest.approx(98.01))
    assert distribution([]) is None


def test_per_token_figures_are_left_out_where_only_totals_were_told():
    one = replace(record((11.0, 2), (12.0, 4)), counts_exact=False, finished=12.0)
    found = distributions([([one], steady_state([one]))])
    assert set(found) == set(NAMES) - {"itl_seconds", "tokens_per_chunk"}


@pytest.mark.parametrize(("p", "expected"), [(0.5, 50.5), (0.9, 90.1), (0.99, 99.01), (0.25, 25.75)])
def test_percentiles_interpolate_between_raw_samples(p, expected):
    assert percentile([float(value) for value in range(100, 0, -1)], p) == pytest.approx(expected)


@pytest.mark.parametrize(("p", "needed"), [(0.99, 100), (0.95, 20), (0.9, 10)])
def test_a_tail_percentile_of_few_samples_is_refused(p, needed):
    percentile([1.0] * needed, p)
    with pytest.raises(UsageError, match=f"needs at least {needed} samples, there are {needed - 1}"):
        percentile([1.0] * (needed - 1), p)


def test_a_single_sample_is_its_own_median():
    assert percentile([3.0], 0.5) == 3.0


def test_the_accept_length_weighs_by_tokens_not_by_requests():
    long, short = record((1.0, 90), spec_verify_ct=30), record((1.0, 10), spec_verify_ct=10)
    assert accept_length([long, short]) == 100 / 40


@pytest.mark.parametrize("meta", [{}, {"spec_verify_ct": 0}, {"spec_verify_ct": "many"}, {"spec_verify_ct": None}])
def test_records_without_verify_steps_do_not_count(meta):
    assert accept_length([record((1.0, 90), **meta)]) is None
    assert accept_length([record((1.0, 90), **meta), record((1.0, 10), spec_verify_ct=5)]) == 2.0
