"""Accepted launches by key, and all measured ones with what became of them."""

from __future__ import annotations

import datetime

import pytest

from mtpgate.errors import UsageError
from mtpgate.judge import history
from mtpgate.judge.baselines import BaselineStore, Origin
from mtpgate.review.past import past
from mtpgate.review.show import accepted
from suites.harness.judge.synthetic import KEY, WHEN, launch, measurement


@pytest.fixture
def store(tmp_path):
    return BaselineStore(tmp_path)


def test_launches_are_grouped_by_key_in_the_order_of_concurrency(store):
    sixteen = KEY.model_copy(update={"workload": "C16 in64 out64 requests16"})
    two = KEY.model_copy(update={"workload": "C2 in64 out64 requests4"})
    newer = KEY.model_copy(update={"sglang": "0.5.24"})
    for key, value in ((sixteen, 100.0), (two, 30.0), (KEY, 20.0), (KEY, 22.0), (newer, 21.0)):
        store.add(launch(value, key=key))
    groups = accepted(store)
    assert [(group.key.workload.split()[0], group.key.sglang, len(group.launches)) for group in groups] == [
        ("C1", "0.5.23", 2),
        ("C1", "0.5.24", 1),
        ("C2", "0.5.23", 1),
        ("C16", "0.5.23", 1),
    ]


def test_a_group_has_mean_spread_and_what_it_can_show(store):
    for value in (19.0, 20.0, 21.0):
        store.add(launch(value, accept_length=1.8))
    (group,) = accepted(store)
    assert (group.mean, group.spread, group.accept_length) == (20.0, pytest.approx(0.05), pytest.approx(1.8))
    assert group.findable_drop > 0.05


def test_one_launch_has_no_spread(store):
    store.add(launch(20.0))
    assert accepted(store)[0].spread is None


def test_a_pattern_without_a_cell_is_refused(store):
    store.add(launch(20.0))
    with pytest.raises(UsageError, match=r"eagle-s2\*: no such cell has accepted launches; nearest: eagle-s1-k1-d2"):
        accepted(store, ["eagle-s2*"])


def test_the_history_says_what_became_of_each_launch(store, tmp_path):
    def entry(run: str, day: int, void: str | None = None, **more: object) -> None:
        when = WHEN + datetime.timedelta(days=day)
        measured = history.entry(KEY, measurement(20.0, void=void), run=run, when=when, **more)
        history.append(tmp_path, KEY.matrix, KEY.cell, measured)

    entry("one", 1)
    entry("two", 2, void="GPU 0 throttled\nmore")
    entry("three", 3, failed_checks=("parity",))
    entry("four", 4, verdict="pass")
    store.add(launch(20.0).model_copy(update={"origin": Origin(run="one")}))
    assert [line.state for line in past(tmp_path)] == ["accepted", "void: GPU 0 throttled", "failed parity", "pass"]
    assert past(tmp_path)[0].accepted.why == "first"
    with pytest.raises(UsageError, match="no such cell has been measured"):
        past(tmp_path, ["nomtp"])
