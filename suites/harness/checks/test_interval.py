"""The interval of a ratio: its formula, its coverage on simulated answers, and pairs of the same prompts."""

from __future__ import annotations

import functools
import math
import random

import pytest
from scipy import stats

from mtpgate.checks.acceptance import judge_acceptance
from mtpgate.checks.interval import Interval, ratio_change, ratio_interval
from mtpgate.matrix.cell import Cell, Speculation
from suites.harness.checks.answering import generated

CELL = Cell("eagle-s3-k1-d4", {}, speculation=Speculation("EAGLE", 3, 1, 4))
SEEDS = 200
# Nominal 95 %: three standard errors of 200 draws are 4.6 points.
COVERAGE = (0.90, 0.996)


@functools.cache
def truth() -> float:
    rng = random.Random(0)
    answers = [generated(rng, "prose-0") for _ in range(10_000)]
    return sum(answer.output_tokens for answer in answers) / sum(answer.meta["spec_verify_ct"] for answer in answers)


@pytest.mark.parametrize("prompts", [8, 12, 32])
def test_it_holds_the_truth_as_often_as_it_says(prompts):
    true, held = truth(), 0
    for seed in range(SEEDS):
        rng = random.Random(seed + 1)
        report = judge_acceptance(CELL, [generated(rng, f"prose-{number}") for number in range(prompts)])
        interval = report.overall.interval
        held += interval.low <= true <= interval.high
    assert COVERAGE[0] <= held / SEEDS <= COVERAGE[1]


def test_repeats_of_the_same_prompts_make_it_no_narrower():
    rng = random.Random(3)
    answers = [generated(rng, f"prose-{number}") for number in range(12)]
    once, thrice = judge_acceptance(CELL, answers), judge_acceptance(CELL, answers * 3)
    assert thrice.overall.interval == once.overall.interval
    assert thrice.overall.prompts == {id_: (3 * y, 3 * x) for id_, (y, x) in once.overall.prompts.items()}
    assert thrice.overall.verify_steps == 3 * once.overall.verify_steps


def test_it_is_the_delta_method_on_the_logarithm():
    pairs = [(64, 20), (64, 32), (64, 25)]
    residuals = [64 / 192 - steps / 77 for _, steps in pairs]
    reach = stats.t.ppf(0.975, 2) * math.sqrt(3 / 2 * sum(residual**2 for residual in residuals))
    found = ratio_interval(pairs)
    assert (found.value, found.clusters) == (pytest.approx(192 / 77), 3)
    assert found.low == pytest.approx(192 / 77 * math.exp(-reach))
    assert found.high == pytest.approx(192 / 77 * math.exp(reach))


@pytest.mark.parametrize("pairs", [[], [(64, 20)], [(0, 0), (0, 0)], [(64, 0), (64, 0)]])
def test_where_there_is_no_spread_or_no_ratio_there_is_none(pairs):
    assert ratio_interval(pairs) is None
    assert ratio_change(pairs, pairs) is None


def test_a_common_fall_is_seen_on_four_prompts_that_differ_widely():
    before = [(64, 20), (64, 40), (64, 30), (64, 25)]
    now = [(64, 24), (64, 47), (64, 36), (64, 30)]
    change = ratio_change(now, before)
    assert change.value == pytest.approx(115 / 137)
    assert change.high < 0.87
    assert not ratio_interval(now).disjoint(ratio_interval(before))


def test_a_change_of_nothing_is_exactly_one():
    pairs = [(64, 20), (64, 40), (64, 30)]
    assert ratio_change(pairs, pairs) == Interval(1.0, 1.0, 1.0, 3)


def test_a_paired_change_holds_the_truth_as_often_as_it_says():
    held = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        steps = [rng.randint(20, 50) for _ in range(8)]
        # Both launches scatter about the same steps: the true change is 1.
        now, before = ([(64, step * rng.gauss(1, 0.05)) for step in steps] for _ in range(2))
        change = ratio_change(now, before)
        held += change.low <= 1 <= change.high
    assert COVERAGE[0] <= held / SEEDS <= COVERAGE[1]


def test_different_prompts_cannot_be_paired():
    with pytest.raises(ValueError, match="cannot be paired"):
        ratio_change([(1, 1)], [(1, 1), (2, 1)])
