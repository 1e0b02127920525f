"""What a run on the stand-in comes to: states, exit codes, and the words that go with them."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

CELLS = ("nomtp", "eagle-s1-k1-d2", "eagle-s3-k1-d4")
FAST = {"tokens_per_second": 400.0}
SLOW = {"tokens_per_second": 60.0}
OOM = {"device": "gpu", "die": {"phase": "capture_target_verify", "how": "oom"}}


def test_healthy_cells_are_green_and_say_where_the_report_is(suite: Any) -> None:
    ended = suite.run()
    assert ended.code == 0, ended.output
    for check in ("startup", "parity", "serving"):
        assert ended.states(check) == dict.fromkeys(CELLS, "passed")
    assert ended.check("eagle-s3-k1-d4", "acceptance").state == "passed"
    assert ended.output.rstrip().splitlines()[-1] == f"report: {ended.out}/index.html"
    assert not ended.run.lost


def test_a_figure_without_a_baseline_is_measured_and_not_passed(suite: Any) -> None:
    ended = suite.run("-m", "throughput", "--cell", "nomtp")
    assert [row.info.id for row in ended.run.cells] == ["nomtp"]
    record = ended.check("nomtp", "throughput")
    assert record.state == "no_baseline"
    assert "tok/s" in record.message
    assert "2 skipped" in ended.output


@pytest.mark.slow
def test_the_reference_is_launched_for_parity_only(suite: Any) -> None:
    speed = suite.run("-m", "throughput", "--cell", "eagle-s1-k1-d2")
    assert [row.info.id for row in speed.run.cells] == ["eagle-s1-k1-d2"]
    parity = suite.run("-m", "parity or serving", "--cell", "eagle-s1-k1-d2")
    asked = {row.info.id: {record.check for record in row.checks} for row in parity.run.cells}
    assert asked == {"nomtp": {"parity"}, "eagle-s1-k1-d2": {"parity", "serving"}}


def test_a_question_that_no_cell_is_asked_is_left_out_not_skipped(suite: Any) -> None:
    ended = suite.run("-m", "acceptance or serving", "--cell", "nomtp")
    assert {record.check for row in ended.run.cells for record in row.checks} == {"serving"}
    assert "skipped" not in ended.output


@pytest.mark.slow
def test_a_slower_server_fails_against_its_recorded_baseline(suite: Any) -> None:
    only = ("-m", "throughput", "--cell", "eagle-s1-k1-d2")
    assert suite.run(*only, "--record-baselines", behaviour=FAST).code == 0
    same = suite.run(*only, behaviour=FAST)
    assert same.code == 0, same.output
    assert same.check("eagle-s1-k1-d2", "throughput").state in ("passed", "insufficient")
    slower = suite.run(*only, behaviour=SLOW)
    record = slower.check("eagle-s1-k1-d2", "throughput")
    assert (slower.code, record.state) == (1, "failed"), slower.output
    assert "regression" in record.message
    assert "step time moved" in record.message


def test_the_acceptance_is_judged_at_each_concurrency_and_kept(suite: Any) -> None:
    ended = suite.run("-m", "acceptance or throughput", "--cell", "eagle-s3-k1-d4")
    (row,) = ended.run.cells
    assert [record.check for record in row.checks] == ["acceptance", *["throughput"] * 3, "acceptance"]
    assert ended.check("eagle-s3-k1-d4", "acceptance").state == "passed", ended.output
    assert row.acceptance["histogram"] and row.acceptance["accept_length"]
    assert list(row.acceptance["under_load"]["by_load"]) == ["C1", "C4"]
    assert row.acceptance["under_load"]["by_load"]["C4"]["requests"] == 3 * 4


def test_the_acceptance_asked_alone_makes_a_short_load_of_its_own(suite: Any) -> None:
    ended = suite.run("-m", "acceptance", "--cell", "eagle-s3-k1-d4")
    (row,) = ended.run.cells
    assert [record.state for record in row.checks] == ["passed", "passed"], ended.output
    assert row.acceptance["under_load"]["by_load"]["C4"]["requests"] == 4


@pytest.mark.slow
def test_drafts_that_got_worse_than_the_baseline_fail_acceptance(suite: Any) -> None:
    only = ("-m", "acceptance or throughput", "--cell", "eagle-s3-k1-d4")
    assert suite.run(*only, "--record-baselines", behaviour={**FAST, "accept_length": 3.0}).code == 0
    worse = suite.run(*only, behaviour={**FAST, "accept_length": 2.0})
    record = worse.check("eagle-s3-k1-d4", "acceptance")
    assert (worse.code, record.state) == (1, "failed"), worse.output
    assert "acceptance fell from" in record.message


@pytest.mark.slow
def test_a_failed_check_keeps_the_launch_out_of_the_baselines(suite: Any) -> None:
    wrong = {"answers": "wrong_speculative"}
    ended = suite.run("--record-baselines", "--cell", "eagle-s1-k1-d2", behaviour=wrong)
    assert ended.check("eagle-s1-k1-d2", "parity").state == "failed"
    assert not (suite.folder / "baselines" / "standin" / "eagle-s1-k1-d2.jsonl").exists()


def test_a_start_up_failure_is_one_failure_with_its_diagnosis_and_blocks_the_rest(suite: Any) -> None:
    ended = suite.run("--cell", "eagle-s3-k1-d4", "-m", "startup or parity or serving", behaviour=OOM)
    assert ended.code == 1
    record = ended.check("eagle-s3-k1-d4", "startup")
    assert record.state == "failed"
    assert "oom_graph_capture in capture_target_verify" in record.message
    assert ended.check("eagle-s3-k1-d4", "serving").state == "blocked"
    assert "Traceback" not in ended.output


def test_a_waiver_excuses_the_failure_it_names(suite: Any) -> None:
    waivers = suite.waivers([waiver(kind="oom_graph_capture")])
    ended = suite.run("-m", "startup", "--cell", "eagle-s3*", f"--known-bad={waivers}", behaviour=OOM)
    assert ended.code == 0, ended.output
    assert ended.check("eagle-s3-k1-d4", "startup").state == "known_bad"


def test_a_waiver_does_not_excuse_another_failure(suite: Any) -> None:
    waivers = suite.waivers([waiver(kind="not_enough_memory")])
    ended = suite.run("-m", "startup", "--cell", "eagle-s3*", f"--known-bad={waivers}", behaviour=OOM)
    record = ended.check("eagle-s3-k1-d4", "startup")
    assert (ended.code, record.state) == (1, "failed")
    assert "fails otherwise than its waiver excuses" in record.message


def test_a_waived_cell_that_passes_is_red_as_fixed(suite: Any) -> None:
    waivers = suite.waivers([waiver(check="parity")])
    ended = suite.run("-m", "parity", "--cell", "eagle-s3*", f"--known-bad={waivers}")
    record = ended.check("eagle-s3-k1-d4", "parity")
    assert (ended.code, record.state) == (1, "fixed")
    assert "Remove the waiver" in record.message


@pytest.mark.slow
def test_a_waiver_of_a_check_with_several_tests_is_used_when_one_of_them_fails(suite: Any) -> None:
    only = ("-m", "throughput", "--cell", "eagle-s1-k1-d2")
    assert suite.run(*only, "--record-baselines", behaviour=FAST).code == 0
    waivers = suite.waivers([waiver(cell="eagle-s1-k1-d2", check="throughput", message=" C1: regression")])
    ended = suite.run(*only, f"--known-bad={waivers}", behaviour={"tokens_per_second": 60.0})
    states = [record.state for row in ended.run.cells for record in row.checks]
    assert sorted(states) == ["failed", "known_bad", "passed"], ended.output


def test_wrong_tokens_of_the_speculative_cells_fail_parity_there_and_only_there(suite: Any) -> None:
    ended = suite.run("-m", "parity", behaviour={"answers": "wrong_speculative"})
    assert ended.states("parity") == {"nomtp": "passed", "eagle-s1-k1-d2": "failed", "eagle-s3-k1-d4": "failed"}
    verdict = " ".join(ended.output[ended.output.index("RED:") :].split())
    assert re.search(
        r"eagle-s1-k1-d2 against nomtp: single( and batch)?: 0 of \d+ answers equal the reference's", verdict
    )


def test_without_answers_of_the_reference_parity_is_blocked_not_passed(suite: Any) -> None:
    dead = {"device": "gpu", "die": {"phase": "capture_target_decode", "how": "exit", "code": 3}}
    ended = suite.run("-m", "parity", "--cell", "eagle-s1-k1-d2", behaviour=dead)
    assert ended.check("nomtp", "parity").state == "blocked"
    record = ended.check("eagle-s1-k1-d2", "parity")
    assert record.state == "blocked"
    assert "reference" in record.message


def test_a_server_that_dies_of_a_question_fails_it_with_the_diagnosis(suite: Any) -> None:
    dies = {"die": {"phase": "serving", "how": "exception", "after_requests": 3}}
    ended = suite.run("-m", "parity or serving", "--cell", "nomtp", behaviour=dies)
    assert ended.check("nomtp", "parity").state == "failed"
    assert "the server died while it was asked" in ended.check("nomtp", "parity").message
    assert ended.check("nomtp", "serving").state == "blocked"


@pytest.mark.parametrize(
    ("part", "value"), [("output_ids", None), ("output_ids", 5), ("text", ["x"]), ("meta_info", {"id": "x"})]
)
def test_an_answer_without_its_parts_fails_and_names_them(suite: Any, part: str, value: object) -> None:
    ended = suite.run("-m", "parity or serving", "--cell", "nomtp", behaviour={"answer": {part: value}})
    record = ended.check("nomtp", "parity")
    assert (ended.code, record.state) == (1, "failed"), ended.output
    named = "completion_tokens" if part == "meta_info" else part
    assert f"{named} is missing or of another type" in record.message
    assert ended.check("nomtp", "serving").state == "failed"
    assert "Traceback" not in ended.output


@pytest.mark.slow
def test_a_server_that_ignores_sigterm_fails_the_stop(suite: Any) -> None:
    ended = suite.run("-m", "serving", "--cell", "nomtp", behaviour={"ignore_sigterm": True})
    assert ended.check("nomtp", "serving").state == "failed"
    assert "had to be killed" in ended.check("nomtp", "serving").message


def test_a_server_that_runs_other_arguments_is_not_the_cell(suite: Any) -> None:
    other = {"server_info": {"speculative_num_steps": 2}}
    ended = suite.run("-m", "startup", "--cell", "eagle-s3-k1-d4", behaviour=other)
    record = ended.check("eagle-s3-k1-d4", "startup")
    assert record.state == "failed"
    assert "speculative_num_steps: asked for 3, the server runs 2" in record.message
    verdict = " ".join(ended.output[ended.output.index("RED:") :].split("Next:")[0].split())
    assert "asked for 3, the server runs 2" in verdict


def waiver(**changes: object) -> dict[str, object]:
    return {"cell": "eagle-s3-k1-d4", "check": "startup", "reason": "seen in the tests", **changes}


def test_the_report_repeats_a_failure_with_the_options_that_it_had(suite: Any) -> None:
    ended = suite.run("-m", "parity", "--cell", "eagle-s1-k1-d2", behaviour={"answers": "wrong_speculative"})
    assert ended.check("eagle-s1-k1-d2", "parity").state == "failed"
    page = html.unescape((ended.out / "index.html").read_text())
    assert "pytest -m parity --cell eagle-s1-k1-d2 --matrix=" in page
    assert "standin.yaml" in page
    assert "'--server-command=" in page


def test_the_recorded_command_carries_the_variables_that_the_suite_added(suite: Any) -> None:
    path = suite.folder / "variable.yaml"
    path.write_text((HERE / "standin.yaml").read_text() + "environment:\n  SGLANG_LOG_MS: 1\n")
    ended = suite.run("-m", "startup", "--cell", "nomtp", f"--matrix={path}")
    (row,) = ended.run.cells
    assert row.launch.command[:2] == ("env", "SGLANG_LOG_MS=1")
