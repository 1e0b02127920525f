"""Accepted launches are appended to text files and found by their key."""

from __future__ import annotations

import datetime
import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest

from mtpgate.errors import UsageError
from mtpgate.judge.baselines import BaselineStore, workload_key
from mtpgate.matrix.cell import Workload
from suites.harness.judge.synthetic import KEY, WHEN, measurement


@pytest.fixture
def store(tmp_path):
    return BaselineStore(tmp_path / "baselines")


def test_a_recorded_launch_is_found_with_its_figures(store):
    store.record(KEY, measurement(41.5, accept_length=1.9), why="first night", when=WHEN)
    (found,) = store.find(KEY).launches
    assert (found.tokens_per_second, found.accept_length, found.why, found.when) == (41.5, 1.9, "first night", WHEN)
    assert found.repeats == pytest.approx((41.5 * 0.995, 41.5, 41.5 * 1.005), abs=1e-4)


def test_the_file_is_one_line_a_launch_under_matrix_and_cell(store, tmp_path):
    path = store.record(KEY, measurement(41.5), why="first", when=WHEN)
    store.record(KEY, measurement(42.5), why="second", when=WHEN)
    assert path == tmp_path / "baselines" / "cpu-small" / "eagle-s1-k1-d2.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["why"], line["tokens_per_second"]) for line in lines] == [("first", 41.5), ("second", 42.5)]
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_nothing_recorded_is_ever_changed(store):
    path = store.record(KEY, measurement(41.5), why="first", when=WHEN)
    before = path.read_text()
    store.record(KEY, measurement(10.0), why="second", when=WHEN - datetime.timedelta(days=1))
    assert path.read_text().startswith(before)


def test_launches_come_oldest_first(store):
    store.record(KEY, measurement(2.0), why="later", when=WHEN + datetime.timedelta(days=1))
    store.record(KEY, measurement(1.0), why="earlier", when=WHEN)
    assert [launch.why for launch in store.find(KEY).launches] == ["earlier", "later"]


@pytest.mark.parametrize("part", ["workload", "sglang", "model", "hardware", "attention_backend", "engine", "gpus"])
def test_a_launch_under_another_key_is_no_baseline_and_the_part_is_named(store, part):
    store.record(KEY, measurement(41.5), why="first", when=WHEN)
    changed = KEY.model_copy(update={part: 8 if part == "gpus" else "other"})
    found = store.find(changed)
    assert found.launches == ()
    assert found.changed == (f"{part}: {getattr(KEY, part)} -> {getattr(changed, part)}",)
    assert f"{part}: " in found.reason()


def test_the_nearest_key_of_the_same_workload_is_compared(store):
    other_workload = KEY.model_copy(update={"workload": "C16"})
    older = KEY.model_copy(update={"sglang": "0.5.22", "hardware": "other"})
    store.record(other_workload, measurement(1.0), why="a", when=WHEN)
    store.record(older, measurement(1.0), why="b", when=WHEN)
    assert store.find(KEY).changed == ("sglang: 0.5.22 -> 0.5.23", "hardware: other -> 2 x86-64 cores")


def test_a_cell_without_a_file_has_no_baseline(store):
    found = store.find(KEY)
    assert (found.launches, found.changed) == ((), ())
    assert "has been accepted" in found.reason()


@pytest.mark.parametrize(
    ("bad", "words"),
    [(measurement(40.0, void="cut"), "cut"), (measurement(math.nan), "no figures"), (measurement(0.0), "no figures")],
)
def test_a_void_measurement_never_becomes_a_baseline(store, bad, words):
    with pytest.raises(UsageError, match=words):
        store.record(KEY, bad, why="x", when=WHEN)
    assert store.find(KEY).launches == ()


def test_a_reason_is_needed(store):
    with pytest.raises(UsageError, match="needs a reason"):
        store.record(KEY, measurement(40.0), why=" ", when=WHEN)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "the line"),
        ('{"key": {}}', r"key\.matrix"),
        ("REPEATS", "repeats"),
        ("EXTRA", "speed"),
    ],
)
def test_a_bad_line_is_named_with_file_line_and_field(store, line, words):
    path = store.record(KEY, measurement(41.5), why="first", when=WHEN)
    good = json.loads(path.read_text())
    line = {"REPEATS": json.dumps(good | {"repeats": []}), "EXTRA": json.dumps(good | {"speed": 1})}.get(line, line)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UsageError, match=rf"eagle-s1-k1-d2\.jsonl, line 2: {words}"):
        store.find(KEY)
    with pytest.raises(UsageError, match="line 2"):
        store.record(KEY, measurement(41.5), why="x", when=WHEN)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden"])
def test_a_name_that_leaves_the_folder_is_refused(store, name):
    with pytest.raises(UsageError, match="cannot name a baseline file"):
        store.find(KEY.model_copy(update={"cell": name}))


def test_launches_recorded_at_the_same_time_are_all_kept(store):
    with ThreadPoolExecutor(4) as pool:
        for value in range(1, 17):
            pool.submit(store.record, KEY, measurement(float(value)), why="x", when=WHEN)
    assert sorted(launch.tokens_per_second for launch in store.find(KEY).launches) == list(range(1, 17))


def test_the_workload_key_holds_all_numbers():
    assert workload_key(Workload(16, 256, 128, 48)) == "C16 in256 out128 requests48 steady"
