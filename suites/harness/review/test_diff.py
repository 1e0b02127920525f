"""A run beside the baselines: the change, and what a changed key leaves to compare."""

from __future__ import annotations

import datetime

import pytest

from mtpgate.judge.baselines import BaselineStore
from mtpgate.judge.comparable import comparable
from mtpgate.review.accept import accept
from mtpgate.review.diff import Difference, differences
from suites.harness.review.nights import EAGLE, NOMTP, Night

NOW = datetime.datetime(2026, 3, 2, 9, 0, tzinfo=datetime.UTC)


@pytest.fixture
def store(tmp_path):
    """Three nights of both cells have been accepted."""
    store = BaselineStore(tmp_path / "baselines")
    for day, factor in ((2, 0.99), (3, 1.0), (4, 1.01)):
        night = Night(tmp_path / "out", started=f"2026-03-0{day}T01:00:00+00:00", factor=factor)
        accept(night.write(), ("*",), store, why="good", who="Ada", now=NOW)
    return store


def lines(tmp_path, store, **changes) -> dict[tuple[str, str], Difference]:
    run = Night(tmp_path / "out", started="2026-03-09T01:00:00+00:00", **changes).write()
    return {(line.cell, line.workload): line for line in differences(run, store)}


def test_each_measurement_is_compared_with_the_mean_of_its_key(tmp_path, store):
    line = lines(tmp_path, store, factor=0.9)[EAGLE, "C16"]
    assert (line.n, line.mean, line.speed) == (3, pytest.approx(170.0), pytest.approx(0.9))
    assert (line.acceptance, line.changed, line.note) == (pytest.approx(1.0), (), "")
    assert 0 < line.findable_drop < 0.2


def test_a_cell_without_speculation_has_no_acceptance_to_compare(tmp_path, store):
    assert lines(tmp_path, store)[NOMTP, "C1"].acceptance is None


def test_another_driver_leaves_both_figures_and_is_named(tmp_path, store):
    line = lines(tmp_path, store, factor=0.9, changes={"driver": "580.2"})[EAGLE, "C1"]
    assert line.changed == ("driver: 570.1 -> 580.2",)
    assert line.still_comparable == ("tokens/s", "accept length")
    assert (line.speed, line.acceptance) == (pytest.approx(0.9), pytest.approx(1.0))
    assert line.findable_drop is None


def test_other_conditions_than_the_baselines_are_told(tmp_path):
    store, slow = BaselineStore(tmp_path / "baselines"), {"condition_figures": {"clock_sm_mhz": 1580.0}}
    usual = Night(tmp_path / "out", records={(EAGLE, "C1"): {"condition_figures": {"clock_sm_mhz": 1965.0}}})
    accept(usual.write(), (EAGLE,), store, why="good", who="Ada", now=NOW)
    line = lines(tmp_path, store, factor=0.85, records={(EAGLE, "C1"): slow})[EAGLE, "C1"]
    assert line.conditions == ("clock_sm_mhz 1580, the baseline's 1965 (-20%)",)
    assert lines(tmp_path, store)[EAGLE, "C16"].conditions == ()


def test_other_hardware_leaves_the_accept_length(tmp_path, store):
    line = lines(tmp_path, store, factor=9.0, changes={"hardware": "64 cores", "driver": "580.2"})[EAGLE, "C1"]
    assert (line.still_comparable, line.speed, line.acceptance) == (("accept length",), None, pytest.approx(1.0))


def test_another_model_leaves_nothing(tmp_path, store):
    line = lines(tmp_path, store, changes={"model": "other", "driver": "580.2"})[EAGLE, "C1"]
    assert (line.still_comparable, line.speed, line.acceptance, line.mean) == ((), None, None, None)
    assert "model: builtin:small-mtp 1 -> other" in line.changed


def test_what_was_never_accepted_or_does_not_count_says_why(tmp_path, store):
    fresh = lines(tmp_path, BaselineStore(tmp_path / "none"))[EAGLE, "C1"]
    assert fresh.note == "no launch of this cell and workload has been accepted"
    void = lines(tmp_path, store, records={(EAGLE, "C1"): {"void": "cut\nmore"}})[EAGLE, "C1"]
    assert (void.note, void.speed) == ("void: cut", None)
    old = lines(tmp_path, store, records={(EAGLE, "C1"): {"key": None}})[EAGLE, "C1"]
    assert "without its key" in old.note


@pytest.mark.parametrize("part", ["matrix", "cell", "workload", "model", "engine"])
def test_a_change_of_what_is_asked_leaves_nothing_to_compare(part):
    assert comparable({part}) == () == comparable({part, "driver"})
