"""The store: what is written is read back, by whatever hand and however the run ended."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

import pytest

from mtpgate.errors import InfrastructureFault, UsageError
from mtpgate.report.records import (
    CellRecord,
    CheckRecord,
    ExpectedCheck,
    FinishRecord,
    FitAttempt,
    LaunchRecord,
    LostCheck,
    MeasurementRecord,
    PhaseSpan,
    PrunedRecord,
    RunInfo,
    WaiverRecord,
)
from mtpgate.report.run import load_run
from mtpgate.report.store import Store, folder_name, plain
from mtpgate.server.budget import Budget, RankBudget
from mtpgate.server.diagnosis import Advice, Diagnosis, Evidence


def info(*cells: str) -> RunInfo:
    return RunInfo(
        started="2026-03-02T01:00:00+00:00",
        matrix_name="small",
        matrix_path="matrices/small.yaml",
        sglang_version="0.5.23",
        python="3.11.7",
        platform="Linux",
        host="box",
        suite_revision=None,
        hardware="CPU, 2 cores",
        command_line="pytest -m mtp",
        cells=tuple(CellRecord(id=cell, waivers=(WaiverRecord(check="startup", reason="too big"),)) for cell in cells),
        pruned=(PrunedRecord(id="x", reason="refused"),),
    )


def check(cell: str = "a", number: int = 0, **changes: object) -> CheckRecord:
    values: dict[str, object] = {
        "cell": cell,
        "check": "parity",
        "test_id": f"t::{cell}::{number}",
        "title": "same words",
        "state": "passed",
    }
    return CheckRecord(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "out")
    store.begin_run(info("a", "b"))
    return store


def measurement(workload: str = "C1", speed: float = 10.0) -> MeasurementRecord:
    return MeasurementRecord(
        workload=workload,
        concurrency=int(workload[1:]),
        output_tokens_per_second=speed,
        repeats=(speed, speed),
        accept_length=2.5,
        ttft_p50_seconds=0.1,
        tpot_p50_seconds=0.01,
    )


def test_everything_that_was_written_is_read_back(store: Store) -> None:
    launch = LaunchRecord(
        command=("python", "-m", "sglang.launch_server"),
        state="ready",
        startup_seconds=12.5,
        phases=(PhaseSpan("weight_load", 0.0, 3.0), PhaseSpan("kv_pool", 3.0, None)),
        resolved={"attention_backend": "flashinfer"},
    )
    store.expect([ExpectedCheck("a", "parity", "t::a::0")])
    store.add_launch("a", launch)
    store.add_check(check())
    store.add_measurement("a", measurement())
    store.write_json("a", "parity", {"prompts": 4})
    store.write_lost([LostCheck("b", "parity", "t::b::0", "worker killed")])
    store.finish_run(FinishRecord("2026-03-02T02:00:00+00:00", 0))

    run = load_run(store.root)

    assert run.info == info("a", "b")
    assert run.cells[0].launch == launch
    assert run.cells[0].checks == (check(),)
    assert run.cells[0].measurements == (measurement(),)
    assert run.cells[0].parity == {"prompts": 4}
    assert run.lost[0].reason == "worker killed"
    assert run.finished is not None
    assert run.problems == ()


def test_a_diagnosis_is_kept_with_its_advice_and_evidence(store: Store) -> None:
    diagnosis = Diagnosis(
        phase="capture_target_verify",
        kind="oom_graph_capture",
        summary="out of memory",
        numbers={"tried": 7.5},
        advice=Advice(mem_fraction_static="lower", max=0.645),
        evidence=(Evidence(41, "CUDA out of memory"),),
    )
    # A dataclass in the record's place is as good as its dictionary: the file holds the same.
    store.add_launch("a", LaunchRecord(("x",), "failed", 3.0, diagnosis=diagnosis))  # type: ignore[arg-type]

    launch = load_run(store.root).cells[0].launch

    assert launch is not None
    assert launch.diagnosis is not None
    assert launch.diagnosis["advice"]["max"] == 0.645  # type: ignore[index]
    assert launch.diagnosis["evidence"] == [{"line": 41, "text": "CUDA out of memory"}]


def test_of_two_outcomes_for_one_test_the_worse_counts_else_the_later(store: Store) -> None:
    store.add_check(check(state="passed"))
    store.add_check(check(state="failed", message="first"))
    store.add_check(check(state="failed", message="second"))
    store.add_check(check(state="passed"))
    assert [(record.state, record.message) for record in load_run(store.root).checks] == [("failed", "second")]


def test_measurements_come_in_order_of_concurrency(store: Store) -> None:
    for workload in ("C16", "C1", "C4"):
        store.add_measurement("a", measurement(workload))
    assert [record.workload for record in load_run(store.root).cells[0].measurements] == ["C1", "C4", "C16"]


def test_a_torn_last_line_is_passed_over_and_said(store: Store) -> None:
    store.add_check(check(number=1))
    with (store.root / "checks.jsonl").open("ab") as file:
        file.write(b'{"cell": "a", "che')
    run = load_run(store.root)
    assert len(run.checks) == 1
    assert "checks.jsonl: 1 line(s)" in run.problems[0]


def test_a_record_after_a_torn_line_is_not_lost_with_it(store: Store) -> None:
    (store.root / "checks.jsonl").write_bytes(b'{"cell": "a", "che')
    store.add_check(check(number=2))
    assert [record.test_id for record in load_run(store.root).checks] == ["t::a::2"]


def test_text_that_is_no_utf8_and_numbers_that_are_no_json_do_not_stop_the_store(store: Store) -> None:
    store.add_check(check(message="bad \udcff byte \x00"))
    store.write_json("a", "acceptance", {"accept_length": float("inf"), "folder": Path("x")})
    run = load_run(store.root)
    assert run.checks[0].message == "bad ? byte \x00"
    assert run.cells[0].acceptance == {"accept_length": None, "folder": "x"}


_WRITER = """
import sys
from pathlib import Path
from mtpgate.report.records import CheckRecord
from mtpgate.report.store import Store
store, name = Store(Path(sys.argv[1])), sys.argv[2]
for number in range(int(sys.argv[3])):
    store.add_check(CheckRecord("a", "parity", f"{name}-{number}", "t", "passed", message="x" * 9000))
    if number == 0:
        print("writing", flush=True)
"""


def writer(store: Store, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, str(store.root), name, str(count)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    )


def test_several_processes_write_without_mixing_their_lines(store: Store) -> None:
    writers = [writer(store, f"w{number}", 60) for number in range(3)]
    for process in writers:
        process.communicate(timeout=60)
    run = load_run(store.root)
    assert len(run.checks) == 180
    assert run.problems == ()


def test_a_writer_that_is_killed_leaves_what_it_wrote_and_no_lock(store: Store) -> None:
    process = writer(store, "victim", 1_000_000)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    store.add_check(check(number=7))
    run = load_run(store.root)
    assert {"victim-0", "t::a::7"} <= {record.test_id for record in run.checks}
    assert run.is_cut_short


def test_a_run_is_complete_only_when_it_finished_with_all_that_was_collected(store: Store) -> None:
    store.expect([ExpectedCheck("a", "parity", "t::a::0"), ExpectedCheck("b", "parity", "t::b::0")])
    store.add_check(check("a"))
    store.finish_run(FinishRecord("2026-03-02T02:00:00+00:00", 0))
    cut = load_run(store.root)
    assert cut.is_cut_short
    assert [missing.test_id for missing in cut.missing] == ["t::b::0"]
    store.add_check(check("b"))
    assert not load_run(store.root).is_cut_short


def test_the_last_run_is_moved_aside_and_not_mixed_in(store: Store) -> None:
    store.add_check(check(message="old"))
    (store.root / "allure-results").mkdir()
    store.begin_run(info("c"))
    assert [cell.id for cell in load_run(store.root).cells] == ["c"]
    assert load_run(store.root / "previous").checks[0].message == "old"
    assert (store.root / "allure-results").is_dir()
    store.begin_run(info("d"))
    assert [cell.id for cell in load_run(store.root / "previous").cells] == ["c"]


def test_moving_aside_is_taken_up_again_after_a_kill_in_the_middle(store: Store) -> None:
    store.add_check(check(message="old"))
    (store.root / ".previous").mkdir()
    (store.root / "checks.jsonl").rename(store.root / ".previous" / "checks.jsonl")
    store.begin_run(info("c"))
    assert load_run(store.root / "previous").checks[0].message == "old"
    assert load_run(store.root).checks == ()


def test_a_check_of_a_cell_that_the_run_does_not_know_is_shown_all_the_same(store: Store) -> None:
    store.add_check(check("stranger"))
    assert [cell.id for cell in load_run(store.root).cells] == ["a", "b", "stranger"]


def test_a_folder_without_a_run_is_a_clear_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pytest -m mtp"):
        load_run(tmp_path)


def test_a_run_of_a_newer_suite_is_refused(store: Store) -> None:
    document = json.loads((store.root / "run.json").read_text())
    (store.root / "run.json").write_text(json.dumps({**document, "schema": 99}))
    with pytest.raises(UsageError, match="schema 99"):
        load_run(store.root)


def test_a_damaged_document_is_a_problem_and_not_a_traceback(store: Store) -> None:
    store.add_launch("a", LaunchRecord(("x",), "ready", 1.0))
    (store.cell_folder("a") / "launch.json").write_text('{"schema": 1, "value": {"state": "odd"}}')
    run = load_run(store.root)
    assert run.cells[0].launch is None
    assert "launch.json cannot be read" in run.problems[0]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_disk_that_does_not_take_a_record_is_one_clear_fault(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", refuse)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(InfrastructureFault, match=rf"checks\.jsonl: {os.strerror(code)}\. Free space or"):
        store.add_check(check())
    with pytest.raises(InfrastructureFault, match=r"launch\.json"):
        store.add_launch("a", LaunchRecord(("x",), "ready", 1.0))
    assert not list((store.root / "cells" / "a").iterdir())


def test_a_place_that_is_no_folder_is_one_clear_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureFault, match="cannot be written"):
        Store(tmp_path / "file").begin_run(info())


def test_an_ordinary_cell_id_is_its_folder() -> None:
    assert folder_name("eagle-s1-k1-d2-f0.60-bs16") == "eagle-s1-k1-d2-f0.60-bs16"


@pytest.mark.parametrize("cell", ["../../etc", "..", ".", "", "a/b", "c:\\x", "x" * 400, "naïve\n"])
def test_no_cell_id_leaves_the_cells_folder(store: Store, cell: str) -> None:
    folder = store.cell_folder(cell)
    assert folder.resolve().parent == (store.root / "cells").resolve()
    assert folder.is_dir()


def test_long_ids_that_differ_at_the_end_have_folders_of_their_own() -> None:
    assert folder_name("x" * 400 + "a") != folder_name("x" * 400 + "b")


def test_memory_forecast_and_fits_of_a_launch_are_read_back(store: Store) -> None:
    budget = plain(Budget(fraction=0.6, ranks=(RankBudget("TP0", before_load=94.21, graphs={"capture_prefill": 1.5}),)))
    launch = LaunchRecord(
        command=("x",),
        state="failed",
        startup_seconds=3.0,
        budget=budget,
        forecast={"from_cell": "b", "fits": None, "predicted": {"weights": 43.62}, "left_gib": None, "text": ""},
        fits=(FitAttempt({"mem_fraction_static": 0.6}, "ready", 60.0, "Ready.", budget),),
        unmatched=("a line",),
    )
    store.add_launch("a", launch)
    run = load_run(store.root)
    assert run.cells[0].launch == launch
    assert run.problems == ()


def test_a_launch_that_was_stored_before_there_were_budgets_is_read(store: Store) -> None:
    old = {"command": ["x"], "state": "ready", "startup_seconds": 3.0, "diagnosis": None}
    (store.cell_folder("a") / "launch.json").write_text(json.dumps({"schema": 1, "value": old}))
    run = load_run(store.root)
    assert run.cells[0].launch == LaunchRecord(("x",), "ready", 3.0)
    assert run.problems == ()


@pytest.mark.parametrize(
    ("key", "bad"), [("budget", "much"), ("forecast", [1]), ("fits", [{"state": "ready"}]), ("unmatched", 7)]
)
def test_a_launch_whose_memory_is_of_the_wrong_shape_is_said(store: Store, key: str, bad: object) -> None:
    value = {"command": ["x"], "state": "ready", "startup_seconds": 3.0, key: bad}
    (store.cell_folder("a") / "launch.json").write_text(json.dumps({"schema": 1, "value": value}))
    (problem,) = load_run(store.root).problems
    assert problem.startswith(f"cells/a/launch.json cannot be read: {key}")


def test_what_asdict_refuses_is_stored_all_the_same() -> None:
    budget = Budget(graph_batch_sizes=MappingProxyType({"capture_prefill": (1, 2)}))
    with pytest.raises(TypeError):
        asdict(budget)
    assert plain(budget)["graph_batch_sizes"] == {"capture_prefill": [1, 2]}


def test_a_run_goes_on_as_long_as_its_process_has_the_folder(store: Store) -> None:
    assert not load_run(store.root).is_going_on
    claimed = store.claim()
    assert load_run(store.root).is_going_on
    os.close(claimed)
    assert not load_run(store.root).is_going_on


def test_a_run_that_has_ended_is_not_going_on_though_its_process_lives(store: Store) -> None:
    claimed = store.claim()
    store.finish_run(FinishRecord("2026-03-02T02:00:00+00:00", 0))
    assert not load_run(store.root).is_going_on
    os.close(claimed)
