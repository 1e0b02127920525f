"""What was measured is kept, the void and the failed too, and nothing kept is ever changed."""

from __future__ import annotations

import datetime
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from mtpgate.errors import InfrastructureFault, UsageError
from mtpgate.judge import history
from mtpgate.judge.baselines import BaselineLaunch
from mtpgate.judge.history import HistoryEntry
from suites.harness.judge.synthetic import KEY, WHEN, measurement

MATRIX, CELL = KEY.matrix, KEY.cell


def entry(value: float = 41.5, **more: object) -> HistoryEntry:
    void = more.pop("void", None)
    given = {"run": "night 1", "when": WHEN} | more
    return history.entry(KEY, measurement(value, accept_length=1.9, void=void), **given)


def test_an_entry_has_every_field_of_a_baseline_launch():
    assert set(BaselineLaunch.model_fields) <= {*HistoryEntry.model_fields, "origin"}


def test_a_measured_launch_is_read_back_as_it_was(tmp_path):
    written = entry(verdict="pass", failed_checks=("parity",), launch=2)
    file = history.append(tmp_path, MATRIX, CELL, written)
    assert file == tmp_path / "history" / MATRIX / f"{CELL}.jsonl"
    assert history.read(tmp_path, MATRIX, CELL) == (written,)
    assert (written.tokens_per_second, written.accept_length) == (41.5, 1.9)


def test_launches_come_oldest_first_and_no_line_is_changed(tmp_path):
    file = history.append(tmp_path, MATRIX, CELL, entry(2.0, when=WHEN + datetime.timedelta(days=1)))
    before = file.read_text()
    history.append(tmp_path, MATRIX, CELL, entry(1.0))
    assert [found.tokens_per_second for found in history.read(tmp_path, MATRIX, CELL)] == [1.0, 2.0]
    assert file.read_text().startswith(before)


def test_what_is_known_later_is_a_second_line_of_the_same_launch(tmp_path):
    first = entry()
    history.append(tmp_path, MATRIX, CELL, first)
    file = history.append(tmp_path, MATRIX, CELL, first.model_copy(update={"failed_checks": ("serving",)}))
    (found,) = history.read(tmp_path, MATRIX, CELL)
    assert found.failed_checks == ("serving",) and not found.sound
    assert len(file.read_text().splitlines()) == 2


@pytest.mark.parametrize("part", [{"run": "night 2"}, {"launch": 2}, {"when": WHEN + datetime.timedelta(seconds=1)}])
def test_another_run_launch_or_moment_is_another_launch(tmp_path, part):
    history.append(tmp_path, MATRIX, CELL, entry())
    history.append(tmp_path, MATRIX, CELL, entry(**part))
    assert len(history.read(tmp_path, MATRIX, CELL)) == 2


@pytest.mark.parametrize("measured", [measurement(math.nan), replace(measurement(math.nan, void="cut"), repeats=())])
def test_a_measurement_without_figures_is_kept_as_void(tmp_path, measured):
    history.append(tmp_path, MATRIX, CELL, history.entry(KEY, replace(measured, repeats=()), run="r", when=WHEN))
    (found,) = history.read(tmp_path, MATRIX, CELL)
    assert found.tokens_per_second is None and found.void == (measured.void or "no repeat was measured")


def test_a_sound_launch_can_be_accepted_with_a_reason():
    launch = entry().accepted(" first night ")
    assert (launch.why, launch.tokens_per_second, launch.when) == ("first night", 41.5, WHEN)
    assert (launch.origin.run, launch.origin.launch) == (entry().run, entry().launch)


@pytest.mark.parametrize(
    ("bad", "words"),
    [({"void": "cut"}, "cut"), ({"failed_checks": ("parity", "serving")}, "failed parity, serving"), ({}, "a reason")],
)
def test_a_void_or_failed_launch_or_one_without_a_reason_is_not_accepted(bad, words):
    with pytest.raises(UsageError, match=words):
        entry(**bad).accepted("good" if bad else " ")


def test_a_cell_that_was_never_measured_has_no_history(tmp_path):
    assert history.read(tmp_path, MATRIX, CELL) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [("{", "the line"), ({"repeats": []}, "the line: Value error, tokens_per_second"), ({"speed": 1}, "speed")],
)
def test_a_bad_line_is_named_with_file_line_and_field(tmp_path, change, words):
    file = history.append(tmp_path, MATRIX, CELL, entry())
    line = change if isinstance(change, str) else json.dumps(json.loads(file.read_text()) | change)
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(UsageError, match=rf"{CELL}\.jsonl, line 2: {words}"):
        history.read(tmp_path, MATRIX, CELL)


def test_a_file_whose_last_line_was_not_ended_loses_nothing(tmp_path):
    file = history.append(tmp_path, MATRIX, CELL, entry(1.0))
    file.write_text(file.read_text().rstrip("\n"))
    history.append(tmp_path, MATRIX, CELL, entry(2.0, run="night 2"))
    assert [found.tokens_per_second for found in history.read(tmp_path, MATRIX, CELL)] == [1.0, 2.0]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    file = history.append(tmp_path, MATRIX, CELL, entry(1.0))
    before, write = file.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:20]))
    with pytest.raises(InfrastructureFault, match="the disk is full"):
        history.append(tmp_path, MATRIX, CELL, entry(2.0))
    assert file.read_bytes() == before


@pytest.mark.parametrize("name", ["../x", "a/b", ""])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match="cannot name a history file"):
        history.append(tmp_path, MATRIX, name, entry())


def test_launches_written_at_the_same_time_are_all_kept(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        for number in range(16):
            pool.submit(history.append, tmp_path, MATRIX, CELL, entry(1.0 + number, run=f"night {number}"))
    found = history.read(tmp_path, MATRIX, CELL)
    assert sorted(item.tokens_per_second for item in found) == [1.0 + number for number in range(16)]


def test_a_folder_that_takes_no_history_is_found_beforehand(tmp_path):
    history.require_writable(tmp_path, MATRIX)
    assert not list((tmp_path / "history" / MATRIX).iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="no history can be written there: Not a directory; see --baselines"):
        history.require_writable(tmp_path / "file", MATRIX)
