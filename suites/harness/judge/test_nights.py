"""Which nights of a history count, and where it changed its level."""

from __future__ import annotations

import datetime
import random

import pytest

from mtpgate.judge import history
from mtpgate.judge.changes import change_points
from mtpgate.judge.nights import last_nights, nights_of
from suites.harness.judge.synthetic import KEY, WHEN, launch, measurement


def night(number, value, **more):
    key = more.pop("key", KEY)
    measured = measurement(value, accept_length=more.pop("accept_length", None), void=more.pop("void", None))
    when = WHEN + datetime.timedelta(days=number, minutes=more.get("launch", 1))
    return history.entry(key, measured, run=f"night {number}", when=when, **more)


def values(found):
    return [dated.night.tokens_per_second for dated in found]


def test_the_value_of_a_night_is_the_mean_of_its_launches():
    found = nights_of([night(1, 90.0, accept_length=1.8), night(1, 100.0, launch=2, accept_length=2.0), night(2, 99.0)])
    assert values(found) == [95.0, 99.0]
    assert found[0].night.accept_length == pytest.approx(1.9)


def test_void_nights_and_those_that_failed_another_check_do_not_count():
    entries = [night(1, 100.0, void="throttled"), night(2, 100.0, failed_checks=("parity",)), night(3, 97.0)]
    assert values(nights_of(entries)) == [97.0]


def test_a_night_that_was_only_too_slow_counts_as_slow():
    assert values(nights_of([night(1, 80.0, failed_checks=("throughput",))])) == [80.0]


def test_the_last_nights_are_those_after_the_first_baseline_and_before_tonight():
    entries = [night(number, 100.0 + number) for number in range(8)]
    baseline = [launch(100.0, when=WHEN), launch(101.0, when=WHEN + datetime.timedelta(days=4, hours=1))]
    found = last_nights(entries, KEY, baseline, tonight="night 7")
    assert [item.tokens_per_second for item in found] == [105.0, 106.0]
    longer = last_nights(entries, KEY, baseline[:1], tonight="night 7")
    assert [item.tokens_per_second for item in longer] == [103.0, 104.0, 105.0, 106.0]


def test_nights_under_another_key_are_other_nights():
    other = KEY.model_copy(update={"sglang": "0.5.24"})
    assert last_nights([night(1, 100.0, key=other)], KEY, [launch(100.0)], tonight="night 9") == ()


def test_without_a_baseline_there_are_no_nights_since():
    assert last_nights([night(1, 100.0)], KEY, [], tonight="night 9") == ()


def series(*levels, seed=1, noise=0.01):
    rng = random.Random(seed)
    flat = [level for level, count in levels for _ in range(count)]
    return [night(number, level * rng.gauss(1, noise)) for number, level in enumerate(flat)]


def test_a_change_of_level_is_found_where_it_was():
    (found,) = change_points(series((100, 12), (95, 8)), KEY, minimum_effect=0.03)
    assert (found.last.run, found.first.run) == ("night 11", "night 12")
    assert found.before == pytest.approx(100, rel=0.01) and found.after == pytest.approx(95, rel=0.01)
    assert "(-" in str(found) and "between 2026-01-13" in str(found)


@pytest.mark.parametrize(("since", "recent"), [(10, True), (11, False)])
def test_a_change_is_old_news_after_ten_nights(since, recent):
    (found,) = change_points(series((100, 12), (90, since)), KEY, minimum_effect=0.03)
    assert (found.nights, found.recent) == (since, recent)


def test_two_changes_are_two():
    found = change_points(series((100, 10), (90, 10), (100, 10)), KEY, minimum_effect=0.03)
    assert [change.first.run for change in found] == ["night 10", "night 20"]


def test_a_change_below_the_minimum_effect_is_not_told():
    assert not change_points(series((100, 15), (98, 15), noise=0.003), KEY, minimum_effect=0.03)


def test_the_versions_on_both_sides_are_named():
    newer = KEY.model_copy(update={"sglang": "0.5.24"})
    entries = [
        *(night(number, 100.0) for number in range(6)),
        *(night(number, 90.0, key=newer) for number in range(6, 12)),
    ]
    (found,) = change_points(entries, newer, minimum_effect=0.03)
    assert str(found).endswith("; SGLang 0.5.23 -> 0.5.24")


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_short_history_has_no_changes(count):
    assert change_points(series((100, count)), KEY, minimum_effect=0.0) == ()


def test_independent_nights_without_a_change_seldom_show_one():
    found = sum(bool(change_points(series((100, 30), seed=seed), KEY, minimum_effect=0.0)) for seed in range(200))
    # Significance 1 %, and three standard errors of 200 histories.
    assert found <= 6
