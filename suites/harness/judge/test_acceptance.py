"""Acceptance under load: against lower concurrency, against the baseline, and beside the speed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mtpgate.checks.answers import Answer
from mtpgate.judge.acceptance import Loaded, judge_under_load
from mtpgate.judge.baselines import BaselineLaunch, BaselineStore
from mtpgate.judge.verdict import judge
from mtpgate.load.measurement import Measurement, Repeat, RequestRecord
from mtpgate.matrix.cell import Cell, Speculation
from suites.harness.checks.answering import generated
from suites.harness.judge.synthetic import KEY, WHEN, launch

CELL = Cell("eagle-s3-k1-d4", {}, speculation=Speculation("EAGLE", 3, 1, 4), accept_length_floor=1.2)
CPU = {"minimum_effect": 0.05, "assumed_launch_noise": 0.01}


def record(answer: Answer) -> RequestRecord:
    count = answer.output_tokens
    return RequestRecord(answer.prompt_id, 0, 0.0, (), 1.0, 4, count, answer.text, answer.meta, None, answer.output_ids)


def load(
    concurrency: int, mean: float, *, prompts: int | None = None, speed: float = 100.0, seed: int = 0, **more: object
) -> Measurement:
    """A load in which every prompt has its own acceptance, moved by ``mean`` in each alike."""
    answers = []
    for number in range(prompts or max(4, concurrency)):
        rng = random.Random(f"{number} {seed}")
        answers.append(generated(rng, f"prose-{number}", tokens=257, mean=mean))
    return measured(concurrency, answers, speed=speed, **more)


def measured(concurrency: int, answers: Sequence[Answer], *, speed: float = 100.0, void: str | None = None):
    records = tuple(record(answer) for answer in answers)
    length = sum(item.output_tokens for item in records) / sum(item.meta["spec_verify_ct"] for item in records)
    repeats = tuple(Repeat(records, 0.0, 1.0, speed, (), (), length) for _ in range(3))
    return Measurement(CELL.id, f"C{concurrency}", concurrency, 64, 257, repeats, speed, length, 0.1, 0.02, void)


def accepted(store: BaselineStore, measurement: Measurement) -> tuple[BaselineLaunch, ...]:
    store.record(KEY, measurement, why="first", when=WHEN)
    return store.find(KEY).launches


def against(store: BaselineStore, now: Measurement, before: Measurement):
    launches = accepted(store, before)
    return judge_under_load(CELL, [Loaded(now, judge(now, launches, **CPU), launches)])


@pytest.fixture
def store(tmp_path):
    return BaselineStore(tmp_path)


def test_the_same_acceptance_at_each_concurrency_is_fine():
    report = judge_under_load(CELL, [Loaded(load(16, 0.6)), Loaded(load(1, 0.6))])
    assert report.ok and not report.undecided
    assert list(report.by_load) == ["C1", "C16"]
    head = report.message().splitlines()[0]
    assert head.startswith("eagle-s3-k1-d4: accept length under load: C1 ") and "C16 " in head


def test_an_acceptance_that_falls_with_concurrency_is_an_alarm():
    report = judge_under_load(CELL, [Loaded(load(1, 0.7)), Loaded(load(16, 0.4))])
    (finding,) = report.findings
    assert finding.startswith("acceptance falls with concurrency: x0.")
    assert "from C1 to C16, over 4 prompts" in finding


def with_steps(concurrency: int, *steps: int) -> Measurement:
    """Answers of 257 tokens in so many verify steps, without further counts."""
    answers = [
        Answer(f"prose-{number}", (), "words", "length", 257, {"spec_verify_ct": count})
        for number, count in enumerate(steps)
    ]
    return measured(concurrency, answers)


def test_a_fall_of_8_percent_with_concurrency_is_scatter_and_one_of_15_is_not():
    low = Loaded(with_steps(1, 100, 130, 115, 90))
    assert judge_under_load(CELL, [low, Loaded(with_steps(16, 108, 141, 124, 97))]).ok
    report = judge_under_load(CELL, [low, Loaded(with_steps(16, 118, 153, 135, 106))])
    assert "x0.85" in report.findings[0]


def test_a_fall_on_prompts_that_disagree_is_undecided():
    low, high = with_steps(1, 100, 100, 100), with_steps(16, 100, 100, 200)
    report = judge_under_load(CELL, [Loaded(low), Loaded(high)])
    assert report.ok
    (doubt,) = [text for text in report.undecided if "acceptance falls with concurrency: x0.75" in text]
    assert doubt.endswith("too few prompts to say")


def test_loads_of_other_lengths_have_no_prompts_in_common_and_need_disjoint_intervals():
    low, high = replace(load(1, 0.85, prompts=16), input_tokens=32), load(16, 0.3)
    (finding,) = judge_under_load(CELL, [Loaded(low), Loaded(high)]).findings
    assert "acceptance falls with concurrency" in finding
    few = replace(load(1, 0.6, prompts=2), input_tokens=32)
    assert judge_under_load(CELL, [Loaded(few), Loaded(load(16, 0.5))]).ok


def of_kinds(concurrency: int, **steps: int) -> Measurement:
    """Six answers of 257 tokens of each kind, each in so many verify steps."""
    answers = [
        Answer(f"{kind}-{number}", (), "words", "length", 257, {"spec_verify_ct": count})
        for kind, count in steps.items()
        for number in range(6)
    ]
    return measured(concurrency, answers)


def test_a_fall_names_the_kinds_of_prompts_that_fell_most():
    low, high = (
        of_kinds(1, prose=100, json=100, code=100, list=100),
        of_kinds(16, prose=140, json=160, code=120, list=150),
    )
    (finding,) = judge_under_load(CELL, [Loaded(low), Loaded(high)]).findings
    assert "over 24 prompts; by kind: json x0.62, list x0.67, prose x0.71: requests of one batch disturb" in finding


def test_a_fall_against_the_baseline_names_the_kinds_and_keeps_all_of_them(store):
    before = of_kinds(16, prose=100, json=100, code=100, list=100)
    report = against(store, of_kinds(16, prose=110, json=130, code=125, list=120), before)
    assert "; by kind: json x0.77, code x0.80, list x0.83)" in report.findings[0]
    kept = report.figures()["against_baseline"]["C16"]["by_kind"]
    assert {kind: round(ratio, 2) for kind, ratio in kept.items()} == {
        "prose": 0.91,
        "json": 0.77,
        "code": 0.8,
        "list": 0.83,
    }


def test_a_floor_missed_at_one_concurrency_is_named_with_it():
    report = judge_under_load(CELL, [Loaded(load(1, 0.6)), Loaded(load(16, 0.02))])
    assert any(
        text.startswith("C16: accept length 1.") and "below the cell's floor" in text for text in report.findings
    )


def test_a_fall_against_the_baseline_with_step_time_unchanged_says_so(store):
    before, now = load(16, 0.7), load(16, 0.5)
    now = load(16, 0.5, speed=100.0 * now.accept_length / before.accept_length)
    (finding,) = against(store, now, before).findings
    assert f"C16: acceptance fell from {before.accept_length:.2f} to {now.accept_length:.2f}" in finding
    assert "while step time is unchanged (x1.00): the drafts got worse" in finding


def test_a_fall_without_a_change_in_speed_says_so(store):
    (finding,) = against(store, load(16, 0.5), load(16, 0.7)).findings
    assert "acceptance fell" in finding
    assert "without a change in speed (x1.00): steps are faster (x0." in finding


def test_a_rise_without_a_change_in_speed_is_an_alarm_too(store):
    (finding,) = against(store, load(16, 0.7), load(16, 0.5)).findings
    assert "acceptance rose" in finding
    assert "without a change in speed (x1.00): steps are slower (x1." in finding


def test_a_rise_with_the_speed_is_a_stale_baseline(store):
    before, now = load(16, 0.5), load(16, 0.7)
    now = load(16, 0.7, speed=100.0 * now.accept_length / before.accept_length)
    report = against(store, now, before)
    assert report.ok
    assert any("the baseline is stale" in text for text in report.notes)


def test_a_speed_that_falls_with_acceptance_unchanged_is_the_step_time(store):
    report = against(store, load(16, 0.6, speed=70.0), load(16, 0.6))
    assert report.ok
    assert any("speed fell (x0.70) with acceptance unchanged" in text and "(x1.43)" in text for text in report.notes)


def test_an_equal_launch_has_nothing_to_say(store):
    report = against(store, load(16, 0.6), load(16, 0.6))
    assert (report.findings, report.undecided, report.notes) == ((), (), ())
    assert report.changes["C16"].moved == "stayed"


def test_other_answers_of_the_same_acceptance_are_no_fall(tmp_path):
    """Every prompt's steps drawn anew, with nothing changed: the worst noise that a launch can have."""
    alarms = 0
    for seed in range(100):
        folder = BaselineStore(tmp_path / str(seed))
        alarms += not against(folder, load(16, 0.6, seed=2 * seed), load(16, 0.6, seed=2 * seed + 1)).ok
    assert alarms <= 3


def test_a_baseline_without_counts_is_compared_with_the_interval_of_this_launch():
    now = load(16, 0.5)
    high = launch(100.0, accept_length=now.accept_length * 1.5)
    near = launch(100.0, accept_length=now.accept_length * 1.01)
    (finding,) = judge_under_load(CELL, [Loaded(now, None, (high,))]).findings
    assert "acceptance fell" in finding and "the speed was not judged" in finding
    assert judge_under_load(CELL, [Loaded(now, None, (near,))]).ok


def test_the_baseline_keeps_tokens_and_steps_by_prompt(store):
    measurement = load(1, 0.6)
    (kept,) = accepted(store, measurement)
    first = measurement.repeats[0].records[0]
    assert len(kept.accept_counts) == 4
    assert kept.accept_counts["prose-0"] == (3 * 257, 3 * first.meta["spec_verify_ct"])


def test_a_void_load_is_undecided_not_passed():
    report = judge_under_load(CELL, [Loaded(load(1, 0.6, void="looping"))])
    assert report.ok and report.undecided == ("C1: void, not judged: looping",)
    lines = report.message().splitlines()
    assert lines == [f"eagle-s3-k1-d4: {report.undecided[0]}", "  accept length under load: not measured"]


def test_the_figures_hold_each_load_and_its_change(store):
    figures = against(store, load(16, 0.5), load(16, 0.7)).figures()
    assert figures["by_load"]["C16"]["histogram"]
    assert figures["against_baseline"]["C16"]["moved"] == "fell"
    assert figures["against_baseline"]["C16"]["ratio"]["clusters"] == 16
