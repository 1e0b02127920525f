"""Speed-up, crossover and the best cell, from measurements of one run."""

from __future__ import annotations

import math

import pytest

from mtpgate.judge.payoff import Point, payoff

REFERENCE, EAGLE, OTHER = "nomtp", "eagle-s3-k1-d4", "nomtp-compiled"


def point(cell, concurrency, speed, spread=0.01, accept_length=None):
    repeats = (speed * (1 - spread), speed, speed * (1 + spread))
    return Point(cell, f"C{concurrency}", concurrency, speed, repeats, accept_length)


def found(speeds, others=(), spread=0.01):
    """``speeds``: by concurrency, the speed-up of one cell over a reference with 100 tokens/s times concurrency."""
    points = [point(REFERENCE, load, 100.0 * load, spread) for load in speeds]
    points += [point(EAGLE, load, 100.0 * load * up, spread, 2.0) for load, up in speeds.items()]
    return payoff([*points, *others], REFERENCE, [EAGLE])


def test_the_speed_up_has_the_spread_of_both_launches_repeats():
    (cell,) = found({1: 1.5}).cells
    (up,) = cell.speedups
    assert up.ratio == pytest.approx(1.5)
    assert (up.low, up.high) == (pytest.approx(1.5 * 0.99 / 1.01), pytest.approx(1.5 * 1.01 / 0.99))
    assert up.pays == "yes" and str(up) == "1.50x (1.47 to 1.53)"


@pytest.mark.parametrize(("ratio", "pays"), [(1.01, "unclear"), (0.99, "unclear"), (0.9, "no"), (1.1, "yes")])
def test_what_the_spread_does_not_tell_is_unclear(ratio, pays):
    assert found({1: ratio}).cells[0].speedups[0].pays == pays


def test_the_crossover_is_interpolated_in_logarithms():
    (crossing,) = found({1: 2.0, 16: 0.5}).cells[0].crossings
    # log 2 above 1 and log 2 below it: half way, in logarithms, from 1 to 16.
    assert crossing.concurrency == pytest.approx(4.0)
    assert str(crossing) == "pays up to about C4 (interpolated between C1 and C16)"


def test_the_crossover_lies_between_the_neighbours_that_were_measured():
    (crossing,) = found({1: 1.8, 4: 1.2, 16: 0.9, 64: 0.7}).cells[0].crossings
    assert (crossing.below, crossing.above) == (4, 16)
    share = math.log(1.2) / (math.log(1.2) - math.log(0.9))
    assert crossing.concurrency == pytest.approx(4 * (16 / 4) ** share)


def test_a_cell_that_begins_to_pay_says_so():
    assert str(found({1: 0.5, 16: 2.0}).cells[0].crossings[0]).startswith("pays from about C4 ")


@pytest.mark.parametrize(
    ("speeds", "words"),
    [
        ({1: 1.5, 16: 1.1}, "is faster than the reference from C1 to C16; a crossover is not within what was measured"),
        ({1: 0.9, 16: 0.8}, "is not faster than the reference from C1 to C16; a crossover is not within what was"),
        ({1: 1.5}, "only C1 was measured: no crossover can be told"),
    ],
)
def test_where_there_is_no_crossover_nothing_is_invented(speeds, words):
    cell = found(speeds).cells[0]
    assert not cell.crossings and cell.crossover.startswith(words)


def test_a_speed_up_of_exactly_one_is_one_crossover():
    assert len(found({1: 2.0, 4: 1.0, 16: 0.5}).cells[0].crossings) == 1


def test_the_best_cell_of_each_workload_is_named_with_its_ties():
    others = [point(OTHER, 1, 151.0), point(OTHER, 16, 500.0)]
    result = found({1: 1.5, 16: 0.8}, others)
    assert (result.best["C1"].point.cell, result.best["C1"].tied) == (OTHER, (EAGLE,))
    assert (result.best["C16"].point.cell, result.best["C16"].over_reference) == (REFERENCE, None)


def test_a_workload_without_the_reference_is_no_comparison():
    result = payoff([point(REFERENCE, 1, 100.0), point(EAGLE, 1, 150.0), point(EAGLE, 16, 900.0)], REFERENCE, [EAGLE])
    assert list(result.best) == ["C1"]
    assert len(result.cells[0].speedups) == 1


@pytest.mark.parametrize("missing", [REFERENCE, EAGLE])
def test_without_both_sides_nothing_is_said(missing):
    points = [point(cell, 1, 100.0) for cell in (REFERENCE, EAGLE) if cell != missing]
    assert payoff(points, REFERENCE, [EAGLE]) is None
