"""What the rule promises, on simulated nights; and that the rule that is simulated is the rule that judges."""

from __future__ import annotations

import datetime
import io

import numpy as np
import pytest
from rich.console import Console

from mtpgate.judge import evaluation_table
from mtpgate.judge.evaluation import FIGURES, KINDS, RULES, Scenario, creep, evaluate, ours, simulate
from mtpgate.judge.pool import pool_of
from mtpgate.judge.rule import NIGHTS
from mtpgate.judge.verdict import Night, alpha_for, confirm, judge
from suites.harness.judge.synthetic import WHEN, launch, measurement

ALPHA = alpha_for(FIGURES)


def rates(kind, noise, accepted, nights=4000):
    row = next(evaluate([Scenario(kind, noise, accepted)], nights=nights, seed=20))
    return row.rules["mtpgate"], row


def at_most(rate, limit, nights):
    """Three standard errors of the simulation above the limit."""
    return rate <= limit + 3 * np.sqrt(limit / nights)


@pytest.fixture(scope="module")
def main():
    return rates("independent", 0.01, 10)


def test_one_false_alarm_in_a_hundred_nights_at_most(main):
    assert main[0].false_alarms <= 0.01


def test_nine_of_ten_drops_of_5_percent_are_found_in_the_first_night(main):
    assert main[0].one_night[0.05] >= 0.9


def test_drops_of_3_percent_are_found_within_five_nights(main):
    # The simulation's own error is 0.3 %.
    assert main[0].within_five[0.03] >= 0.89


def test_the_rules_of_others_find_less_or_cry_wolf(main):
    for name, other in main[1].rules.items():
        if name != "mtpgate":
            assert other.false_alarms > 0.01 or other.one_night[0.05] < 0.9, name


@pytest.mark.parametrize("noise", [0.003, 0.01, 0.03])
@pytest.mark.parametrize("accepted", [1, 3, 10])
def test_false_alarms_stay_rare_at_any_noise_and_with_few_launches(noise, accepted):
    ours, row = rates("independent", noise, accepted, nights=1000)
    assert at_most(ours.false_alarms, 0.01, row.matrix_nights)


@pytest.mark.parametrize(
    ("kind", "noise", "limit"),
    [
        ("correlated nights", 0.01, 0.015),
        ("night only", 0.01, 0.04),
        ("machine's nights", 0.01, 0.01),
        ("heavy tails", 0.01, 0.01),
        ("disturbed", 0.01, 0.01),
        ("unlike cells", 0.01, 0.01),
        ("heavy tails", 0.03, 0.03),
        ("disturbed", 0.03, 0.035),
    ],
)
def test_false_alarms_where_the_assumptions_do_not_hold(kind, noise, limit):
    ours, row = rates(kind, noise, 10, nights=2000)
    assert at_most(ours.false_alarms, limit, row.matrix_nights)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_noise_has_the_standard_deviation_of_its_row(kind):
    draws = simulate(Scenario(kind, 0.01, 10), 300, 12, np.random.default_rng(3))[..., 0]
    each = draws.std(axis=(0, 2)) if kind != "unlike cells" else np.median(draws.std(axis=2), axis=0)
    assert float(np.median(each)) == pytest.approx(0.01, rel=0.12)


@pytest.mark.parametrize("accepted", [1, 2, 3, 10, 14])
@pytest.mark.parametrize("kind", ["independent", "night only", "heavy tails"])
def test_the_rule_that_is_simulated_is_the_rule_that_judges(kind, accepted):
    """Launch by launch through judge() and confirm(), as the suite does it, on a matrix with drops of all sizes."""
    rng = np.random.default_rng([4, accepted])
    series = simulate(Scenario(kind, 0.02, accepted), 1, accepted + NIGHTS, rng)
    base, nights = series[..., :accepted, 0], series[..., accepted:, :] * (1 - rng.uniform(0, 0.15, (1, FIGURES, 1, 1)))
    simulated = ours(base, nights, alpha=ALPHA)[..., 0]
    assert 0 < simulated.mean() < 1 or accepted < 3
    pool = pool_of(base[0])
    for figure in range(FIGURES):
        accepted_launches = [
            launch(value, repeats=(value,), when=WHEN + datetime.timedelta(days=day))
            for day, value in enumerate(base[0, figure])
        ]
        first, second = (measurement(value, repeats=(value,)) for value in nights[0, figure, -1])
        known = {"alpha": ALPHA, "pool": pool, "nights": [Night(value) for value in nights[0, figure, :-1, 0]]}
        verdict = judge(first, accepted_launches, **known)
        if verdict.red:
            verdict = confirm(verdict, judge(second, accepted_launches, first_launch=first, **known))
        assert verdict.red == bool(simulated[0, figure]), verdict.text


def test_a_drift_that_every_accept_follows_is_found_before_it_costs_5_percent():
    found = creep(histories=10, seed=1)
    assert found.rules["mtpgate"] is not None and found.rules["mtpgate"] <= 0.05
    assert found.rules["-10 % of 10"] is None
    words = evaluation_table.creep_words(found)
    assert (
        f"mtpgate: found at -{found.rules['mtpgate']:.1%}; " in words and "-10 % of 10: not within 60 nights" in words
    )


def test_the_same_seed_gives_the_same_table():
    scenarios = [Scenario("heavy tails", 0.01, 3)]
    first, second = (list(evaluate(scenarios, nights=50, seed=7)) for _ in range(2))
    assert first == second
    assert first != list(evaluate(scenarios, nights=50, seed=8))


def test_the_table_has_a_line_for_each_rule_and_the_json_the_same_figures():
    rows = list(evaluate([Scenario("independent", 0.01, 10)], nights=50, seed=1))
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(evaluation_table.table(rows))
    text = console.export_text()
    (found,) = evaluation_table.as_json(rows, creep(histories=1, seed=1))["scenarios"]
    assert list(found["rules"]) == list(RULES)
    for name, rates in found["rules"].items():
        (line,) = (line for line in text.splitlines() if f" {name} " in line)
        assert f"{rates['false_alarms_a_night']:.2%}" in line
        assert f"{rates['found_in_one_night']['0.05']:.0%} / {rates['found_within_five']['0.05']:.0%}" in line
