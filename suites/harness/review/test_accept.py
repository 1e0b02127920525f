"""What a finished run measured becomes a baseline by an explicit accept, or is refused by name."""

from __future__ import annotations

import datetime
import json
import subprocess
from pathlib import Path

import pytest

from mtpgate.errors import UsageError
from mtpgate.judge.baselines import BaselineLaunch, BaselineStore
from mtpgate.review.accept import accept
from mtpgate.review.who import whoami
from suites.harness.review.nights import EAGLE, NOMTP, STARTED, Night, key

NOW = datetime.datetime(2026, 3, 2, 9, 0, tzinfo=datetime.UTC)


@pytest.fixture
def store(tmp_path: Path) -> BaselineStore:
    return BaselineStore(tmp_path / "baselines")


def taken(night: Night, store: BaselineStore, *cells: str, **more: object) -> tuple[BaselineLaunch, ...]:
    given = {"why": "first night", "who": "Ada", "now": NOW} | more
    return accept(night.write(), cells or (EAGLE,), store, **given)


def test_an_accepted_launch_keeps_who_when_why_and_what(tmp_path, store):
    taken(Night(tmp_path / "out"), store)
    (found,) = store.find(key(EAGLE, "C16")).launches
    assert (found.tokens_per_second, found.repeats) == (170.0, (168.3, 170.0, 171.7))
    assert (found.accept_length, found.accept_counts) == (1.8, {"prose-1": (32, 18)})
    assert found.when.isoformat() == "2026-03-02T01:20:00.123000+00:00"
    assert (found.why, found.origin.who, found.origin.accepted) == ("first night", "Ada", NOW)
    assert (found.origin.run, found.origin.sglang_version) == (STARTED, "0.5.23")


def test_only_the_cells_and_workloads_that_are_named_are_accepted(tmp_path, store):
    taken(Night(tmp_path / "out"), store, "eagle-*", workloads=("C1",))
    assert store.cells() == (("small", EAGLE),)
    assert [launch.key.workload[:3] for launch in store.launches("small", EAGLE)] == ["C1 "]


def test_what_was_accepted_before_stays_as_it_is(tmp_path, store):
    taken(Night(tmp_path / "out"), store)
    before = store.path("small", EAGLE).read_text()
    taken(Night(tmp_path / "out", started="2026-03-03T01:00:00+00:00"), store, why="second night")
    after = store.path("small", EAGLE).read_text()
    assert after.startswith(before)
    assert [json.loads(line)["why"] for line in after.splitlines()] == ["first night"] * 2 + ["second night"] * 2


def test_the_same_launch_is_accepted_once(tmp_path, store):
    taken(Night(tmp_path / "out"), store, workloads=("C1",))
    with pytest.raises(UsageError, match=r"C1: this launch has been accepted before by Ada on 2026-03-02 \(first"):
        taken(Night(tmp_path / "out"), store)
    assert len(store.launches("small", EAGLE)) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"states": {(EAGLE, "parity"): ("failed", "3 of 12 answers differ")}}, "parity failed: .*3 of 12 answers"),
        ({"states": {(EAGLE, "parity"): ("broken", "disk full")}}, "parity broken: .*disk full"),
        ({"states": {(EAGLE, "parity"): ("blocked", "no server")}}, "parity blocked"),
        ({"states": {(EAGLE, "C1"): ("failed", "the answers are not sane")}}, "throughput failed: .*not sane"),
        ({"silent": (EAGLE,)}, "parity not run"),
        ({"lost": (EAGLE,)}, "lost: .*its worker died"),
        ({"records": {(EAGLE, "C16"): {"void": "GPU 3 throttled"}}}, "C16: void: GPU 3 throttled"),
        ({"records": {(EAGLE, "C16"): {"output_tokens_per_second": 0.0}}}, "C16: it has no figures"),
        ({"records": {(EAGLE, "C16"): {"output_tokens_per_second": None}}}, "1 line.* unreadable"),
        ({"records": {(EAGLE, "C16"): {"key": None}}}, "C16: an older suite stored it without its key"),
        ({"records": {(EAGLE, "C16"): {"key": {"matrix": "m"}}}}, "C16: its record cannot be read"),
        ({"records": {(EAGLE, "C16"): {"when": "yesterday"}}}, "C16: its record cannot be read"),
        ({"fault": "forward:slow=0.1"}, "broken on purpose"),
        ({"finished": False}, "killed before its end"),
    ],
)
def test_a_launch_with_another_fault_is_refused_by_name_and_nothing_is_written(tmp_path, store, changes, words):
    with pytest.raises(UsageError, match=f"(?s)nothing was accepted:.*{words}"):
        taken(Night(tmp_path / "out", **changes), store, NOMTP, EAGLE)
    assert store.cells() == ()


def test_all_reasons_are_told_at_once(tmp_path, store):
    night = Night(
        tmp_path / "out",
        states={(EAGLE, "parity"): ("failed", "differs"), (NOMTP, "parity"): ("failed", "differs")},
        records={(NOMTP, "C1"): {"void": "cut"}},
    )
    with pytest.raises(UsageError) as refused:
        taken(night, store, "*")
    assert len(str(refused.value).splitlines()) == 4


def test_a_fault_of_another_cell_does_not_count(tmp_path, store):
    taken(Night(tmp_path / "out", states={(NOMTP, "parity"): ("failed", "differs")}), store, EAGLE)
    assert len(store.launches("small", EAGLE)) == 2


@pytest.mark.parametrize("state", ["known_bad", "no_baseline", "insufficient", "skipped", "fixed"])
def test_a_waived_failure_or_what_was_not_judged_is_no_obstacle(tmp_path, store, state):
    assert len(taken(Night(tmp_path / "out", states={(EAGLE, "parity"): (state, "waived")}), store)) == 2


def test_a_regression_can_be_agreed_to(tmp_path, store):
    night = Night(
        tmp_path / "out",
        states={(EAGLE, "C16"): ("failed", "9 % slower")},
        records={(EAGLE, "C16"): {"verdict_state": "regression"}},
    )
    assert len(taken(night, store, why="the new sampler costs that much")) == 2


@pytest.mark.parametrize(("why", "who", "words"), [(" ", "Ada", "--why"), ("x", "", "--who")])
def test_a_reason_and_a_name_are_needed(tmp_path, store, why, who, words):
    with pytest.raises(UsageError, match=words):
        taken(Night(tmp_path / "out"), store, why=why, who=who)


def test_a_cell_that_the_run_has_not_is_named_with_what_is_near(tmp_path, store):
    with pytest.raises(UsageError, match=r"eagle-s1-k1: no such cell .*nearest: eagle-s1-k1-d2"):
        taken(Night(tmp_path / "out"), store, "eagle-s1-k1")


def test_a_workload_that_was_not_measured_is_refused(tmp_path, store):
    with pytest.raises(UsageError, match="was not measured at C64"):
        taken(Night(tmp_path / "out"), store, workloads=("C64",))


def test_the_one_who_accepts_is_gits_user_else_the_login(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path / "repo")], check=True)
    subprocess.run(["git", "-C", str(tmp_path / "repo"), "config", "user.name", "Ada L."], check=True)
    assert whoami(tmp_path / "repo", {"USER": "ada"}) == "Ada L."
    assert whoami(tmp_path / "missing", {"USER": "ada"}) == "ada"
    assert whoami(tmp_path / "missing", {}) == ""
