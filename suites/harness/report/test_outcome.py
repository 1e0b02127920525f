"""The verdict: which light a run shows, and the sentence that says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mtpgate.report.outcome import STATES, WORDS, judge_run
from mtpgate.report.records import FinishRecord, MeasurementRecord
from mtpgate.report.run import Run, load_run
from mtpgate.report.sentence import Headline, headline, ways
from mtpgate.report.store import Store
from suites.harness.report import examples
from suites.harness.report.examples import EAGLE, REFERENCE, Example, check, outcome, write


def run_of(tmp_path: Path, example: Example) -> Run:
    return load_run(write(tmp_path / "out", example))


def said(tmp_path: Path, example: Example) -> tuple[str, Headline]:
    run = run_of(tmp_path, example)
    judged = judge_run(run)
    return judged.light, headline(run, judged)


def test_a_good_night_is_green_with_nothing_to_do(tmp_path: Path) -> None:
    assert said(tmp_path, examples.GREEN) == ("green", Headline("23 checks of 4 cells passed."))


def test_a_slow_cell_is_red_and_the_sentence_names_it_with_its_figures(tmp_path: Path) -> None:
    light, line = said(tmp_path, examples.SLOWER)
    assert light == "red"
    assert line.sentence.startswith("1 of 4 cells failed: eagle-s3-k1-d4 throughput C1 is 31.0 % below its baseline")
    assert "step time" in line.next_step


def test_the_next_step_of_a_start_up_failure_comes_from_its_diagnosis(tmp_path: Path) -> None:
    light, line = said(tmp_path, Example(died={EAGLE[0]: examples.OOM}))
    assert light == "red"
    assert line.sentence.startswith("1 of 4 cells failed: eagle-s1-k1-d2 startup: Rank TP2 ran out of GPU memory")
    assert line.next_step == "Lower mem_fraction_static: at most 0.645."


def test_a_failed_start_up_is_said_before_a_slow_cell_whatever_the_matrix_order(tmp_path: Path) -> None:
    slow = outcome(REFERENCE, "throughput-C1", "failed", "slow")
    run = run_of(tmp_path, Example(died={EAGLE[2]: examples.OOM}, outcomes=slow))
    assert [row.cell.id for row in judge_run(run).rows[:2]] == [EAGLE[2], REFERENCE]


def test_further_failures_are_named_and_many_are_counted(tmp_path: Path) -> None:
    _, few = said(tmp_path / "few", examples.OOM_AND_MORE)
    assert few.sentence.endswith("Also eagle-s3-k2-d6 (parity) and eagle-s3-k1-d4 (throughput).")
    _, many = said(tmp_path / "many", examples.many(40, 20))
    assert many.sentence.endswith("The same in 9 more cells. Also 10 more cells in other ways.")


def test_failures_are_grouped_by_how_they_failed(tmp_path: Path) -> None:
    run = run_of(tmp_path, examples.many(40, 22))
    found = [(way, len(rows)) for way, rows in ways(judge_run(run).red_rows)]
    assert found == [
        ("startup failed, capture_target_verify, oom_graph_capture", 11),
        ("throughput failed", 11),
    ]


def test_an_excused_failure_is_not_red_and_what_it_blocks_neither(tmp_path: Path) -> None:
    light, line = said(tmp_path, examples.KNOWN_BAD)
    assert light == "green"
    assert line.sentence == "17 checks of 4 cells passed; 1 known bad (waived), 5 blocked by that."


def test_a_waived_check_that_passes_is_red_and_says_what_to_remove(tmp_path: Path) -> None:
    light, line = said(tmp_path, examples.FIXED)
    assert light == "red"
    assert line.sentence.startswith("1 of 4 cells passed though known bad")
    assert "remove its waiver" in line.next_step


def test_a_failure_of_the_machine_is_not_called_one_of_the_product(tmp_path: Path) -> None:
    light, line = said(tmp_path, examples.BROKEN)
    assert light == "broken"
    assert "because the machine failed" in line.sentence
    assert "doctor" in line.next_step


def test_without_baselines_the_run_is_not_green_and_says_how_to_record(tmp_path: Path) -> None:
    light, line = said(tmp_path, examples.NO_BASELINE)
    assert light == "unjudged"
    assert line.sentence.startswith("No baseline: all 4 cells were measured with nothing to compare")
    assert "--record-baselines" in line.next_step


@pytest.mark.parametrize("state", ["unstable", "insufficient", "void"])
def test_a_measurement_that_cannot_be_judged_is_not_green(tmp_path: Path, state: str) -> None:
    root = write(tmp_path / "out", examples.GREEN)
    Store(root).add_measurement(
        EAGLE[0], MeasurementRecord("C1", 1, 29.0, (29.0,), 1.7, None, None, verdict_state=state, verdict_text="why")
    )
    run = load_run(root)
    judged = judge_run(run)
    assert judged.light == "unjudged"
    assert headline(run, judged).sentence.startswith(f"eagle-s1-k1-d2 C1 is {state}: why.")


def test_a_check_with_too_little_to_compare_is_not_green(tmp_path: Path) -> None:
    light, line = said(tmp_path, Example(outcomes=outcome(EAGLE[0], "throughput-C1", "insufficient", "two launches")))
    assert light == "unjudged"
    assert line.sentence.startswith("two launches.")


def test_an_unstable_speed_is_neither_red_nor_green_and_comes_before_what_has_no_baseline(tmp_path: Path) -> None:
    said_of_it = "eagle-s1-k1-d2 C1: unstable: 20.0 tok/s breached and the relaunch's 29.0 tok/s did not confirm it"
    unstable = outcome(EAGLE[0], "throughput-C1", "unstable", said_of_it)
    light, line = said(tmp_path, Example(outcomes=unstable | outcome(EAGLE[1], "throughput-C1", "no_baseline", "new")))
    assert light == "unjudged"
    assert line.sentence.startswith(f"{said_of_it}.")
    assert "breach again next night" in line.next_step


def test_a_killed_run_is_cut_short_with_its_count(tmp_path: Path) -> None:
    light, line = said(tmp_path, examples.CUT)
    assert light == "cut"
    assert line.sentence == "9 of 23 checks reported. The run was killed, or is still going on."


def test_a_killed_run_with_a_failure_is_red_and_says_that_it_was_cut(tmp_path: Path) -> None:
    cut = replace(examples.CUT, outcomes=outcome(REFERENCE, "serving", "failed", "it hung"))
    light, line = said(tmp_path, cut)
    assert light == "red"
    assert "also cut short: 9 of 23 checks reported" in line.sentence


def test_a_killed_run_is_not_green_even_if_all_checks_were_reported(tmp_path: Path) -> None:
    assert said(tmp_path, Example(reported=23))[0] == "cut"


def test_a_lost_check_is_not_green(tmp_path: Path) -> None:
    light, line = said(tmp_path, examples.LOST)
    assert light == "cut"
    assert "1 lost with their worker" in line.sentence


@pytest.mark.parametrize(("status", "reason"), [(2, "interrupted"), (3, "internal error"), (4, "usage")])
def test_a_run_that_pytest_did_not_finish_is_not_green(tmp_path: Path, status: int, reason: str) -> None:
    root = write(tmp_path / "out", examples.GREEN)
    Store(root).finish_run(FinishRecord("2026-03-02T01:14:40+00:00", status))
    run = load_run(root)
    judged = judge_run(run)
    assert judged.light == "cut"
    assert reason in headline(run, judged).sentence


def test_a_failure_beside_the_checks_is_not_green(tmp_path: Path) -> None:
    root = write(tmp_path / "out", examples.GREEN)
    Store(root).finish_run(FinishRecord("2026-03-02T01:14:40+00:00", 1))
    run = load_run(root)
    judged = judge_run(run)
    assert judged.light == "broken"
    assert "no check of a cell did" in headline(run, judged).sentence


def test_no_check_at_all_is_not_green(tmp_path: Path) -> None:
    light, line = said(tmp_path, Example(cells=()))
    assert light == "empty"
    assert "says nothing about the product" in line.sentence


def test_only_skipped_checks_are_not_green(tmp_path: Path) -> None:
    names = [(REFERENCE, name) for name in examples.ASKED]
    skipped = {(cell, name): check(cell, name, "skipped") for cell, name in names}
    assert said(tmp_path, Example(cells=(REFERENCE,), outcomes=skipped))[0] == "empty"


def test_a_dead_server_is_red_though_no_check_was_asked_that_says_so(tmp_path: Path) -> None:
    died = Example(died={EAGLE[0]: examples.OOM}, outcomes=outcome(EAGLE[0], "startup", "blocked"))
    light, line = said(tmp_path, died)
    assert light == "red"
    assert "ran out of GPU memory" in line.sentence


def test_the_worst_of_several_tests_is_the_state_of_their_check(tmp_path: Path) -> None:
    run = run_of(tmp_path, Example(outcomes=outcome(EAGLE[0], "throughput-C16", "failed", "slow")))
    row = next(row for row in judge_run(run).rows if row.cell.id == EAGLE[0])
    assert row.marks["throughput"] == "failed"


def test_a_clean_up_that_breaks_does_not_hide_the_failure_before_it(tmp_path: Path) -> None:
    root = write(tmp_path / "out", examples.SLOWER)
    Store(root).add_check(check(EAGLE[1], "throughput-C1", "broken", "stop timed out"))
    assert judge_run(load_run(root)).counts["failed"] == 1


def test_each_state_has_a_word() -> None:
    assert set(STATES) == set(WORDS)
