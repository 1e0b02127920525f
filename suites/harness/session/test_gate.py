"""What the gate makes of loads whose answers are not sane."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from fixtures.baselines import Gate
from mtpgate.checks.answers import Answer, Answers
from mtpgate.errors import InfrastructureFault
from mtpgate.judge import history
from mtpgate.judge.acceptance import Loaded
from mtpgate.judge.baselines import BaselineStore
from mtpgate.load.measurement import Measurement, Repeat, RequestRecord
from mtpgate.matrix.cell import Cell, Speculation, Workload
from mtpgate.report.records import MeasurementRecord
from mtpgate.report.store import Store
from suites.harness.judge.synthetic import KEY
from suites.throughput import test_throughput as throughput

CELL = Cell("eagle-s1-k1-d2", {}, speculation=Speculation("EAGLE", 1, 1, 2))
FINE, STUCK = tuple(range(32)), (1, 2, *[7] * 30)


def now() -> datetime:
    return datetime.now().astimezone()


def load(cell: str, *answers: tuple[int, ...], meta: dict[str, Any] | None = None) -> Measurement:
    known = {"finish_reason": {"type": "length"}, **(meta or {})}
    records = tuple(
        RequestRecord(f"prose-{n}", 0, 0.0, (), 1.0, 4, len(ids), "some words", known, None, ids)
        for n, ids in enumerate(answers)
    )
    repeat = Repeat(records, 0.0, 1.0, 40.0, (), (), None)
    return Measurement(cell, "C1", 1, 4, 32, (repeat,), 40.0, None, 0.1, 0.02)


def parity(*ids: int) -> Answers:
    return Answers("batch", {"prose-0": Answer("prose-0", ids, "words", "length", len(ids))}, len(ids))


@pytest.fixture
def gate(tmp_path: Any) -> Gate:
    plan = SimpleNamespace(
        reference=SimpleNamespace(id="nomtp"),
        matrix=SimpleNamespace(minimum_effect=0.1),
        request=SimpleNamespace(fault=None),
    )
    return Gate(
        launched=SimpleNamespace(cell=CELL, server=None, launches=1),
        prepared=SimpleNamespace(plan=plan),
        baselines=BaselineStore(tmp_path / "baselines"),
        store=Store(tmp_path / "out"),
        progress=None,
        figures=1,
        loads={},
        answers={},
        records=True,
        run="tonight",
        pool=None,
        failed={},
        measured=[],
    )


def test_sane_answers_are_fit_to_be_counted(gate):
    assert gate.insane(load(CELL.id, FINE, FINE)) is None


def test_a_loop_is_the_cells_own_fault_if_the_reference_has_none(gate):
    gate.loads["nomtp", "C1"] = Loaded(load("nomtp", FINE, FINE))
    found = gate.insane(load(CELL.id, FINE, STUCK))
    assert found.own
    assert "so their speed does not count (1 findings):\nprose-1: stuck_token" in found.text


def test_a_loop_that_the_reference_has_too_is_no_fault_and_no_speed_either(gate):
    gate.loads["nomtp", "C1"] = Loaded(load("nomtp", FINE, STUCK))
    found = gate.insane(load(CELL.id, FINE, STUCK))
    assert not found.own
    assert "1 findings, and neither are the reference's to the same prompts" in found.text


def test_without_the_reference_a_loop_counts_as_the_cells_own(gate):
    assert gate.insane(load(CELL.id, STUCK)).own


def test_a_cell_whose_parity_answers_loop_has_no_speed_though_its_load_is_sane(gate):
    gate.answers.update({("nomtp", "batch"): parity(*FINE), (CELL.id, "batch"): parity(*STUCK)})
    found = gate.insane(load(CELL.id, FINE))
    assert found.own and "prose-0: stuck_token" in found.text
    gate.answers["nomtp", "batch"] = parity(*STUCK)
    assert gate.insane(load(CELL.id, FINE)) is None


def test_a_void_load_is_stored_as_void_whatever_its_speed(gate, monkeypatch):
    monkeypatch.setattr(Gate, "key", lambda *_: KEY)
    verdict = gate.judge(replace(load(CELL.id, STUCK), void="the answers are not sane"), Workload(1, 4, 32, 1))
    assert verdict.state == "void" and not verdict.green
    (kept,) = history.read(gate.baselines.folder, KEY.matrix, KEY.cell)
    assert (kept.void, kept.verdict, kept.run) == ("the answers are not sane", "void", "tonight")
    (line,) = (gate.store.cell_folder(CELL.id) / "measurements.jsonl").read_text().splitlines()
    assert '"verdict_state": "void"' in line and '"void": "the answers are not sane"' in line


@pytest.mark.parametrize(("reference", "ok"), [(FINE, False), (STUCK, True)])
def test_a_loop_in_a_load_of_the_acceptance_suite_is_red_if_it_is_the_cells_own(gate, monkeypatch, reference, ok):
    gate.loads["nomtp", "C1"] = Loaded(load("nomtp", reference))
    monkeypatch.setattr(Gate, "measure", lambda *_, **__: load(CELL.id, STUCK))
    monkeypatch.setattr(Gate, "key", lambda *_: SimpleNamespace(matrix="m", cell=CELL.id, workload="C1"))
    monkeypatch.setattr(BaselineStore, "find", lambda *_: SimpleNamespace(launches=()))
    report = gate.acceptance([Workload(1, 4, 32, 1)])
    assert report.ok == ok
    assert "prose-0: stuck_token" in report.message()


def test_a_load_with_wrong_counts_becomes_no_baseline(gate):
    counts = {"spec_verify_ct": 20, "spec_num_correct_drafts": 31}
    measurement = load(CELL.id, FINE, meta=counts)
    gate.loads[CELL.id, "C1"] = Loaded(measurement)
    said = gate.record_if_asked(measurement, Workload(1, 4, 32, 1))
    assert said.startswith("not recorded as a baseline: C1: the counts are wrong")
    assert not list(gate.store.root.parent.glob("baselines/**/*.jsonl"))


def test_a_load_of_which_nothing_was_measured_is_stored_and_read_back_as_void(gate, monkeypatch):
    monkeypatch.setattr(Gate, "key", lambda *_: KEY)
    nothing = replace(
        load(CELL.id), repeats=(), output_tokens_per_second=math.nan, ttft_p50_seconds=math.nan, void="warm-up: cut"
    )
    gate.judge(nothing, Workload(1, 4, 32, 1))
    line = (gate.store.cell_folder(CELL.id) / "measurements.jsonl").read_text()
    record = TypeAdapter(MeasurementRecord).validate_json(line)
    assert (record.output_tokens_per_second, record.ttft_p50_seconds, record.void) == (0.0, None, "warm-up: cut")


def loads_of(monkeypatch: Any, *measurements: Measurement) -> list[bool]:
    """The gate measures these, one after the other; returns a list with an item for each that it took."""
    taken: list[bool] = []

    def once(_: Gate, __: Workload, **more: bool) -> Measurement:
        taken.append(more["watched"])
        return measurements[len(taken) - 1]

    monkeypatch.setattr(Gate, "_measure_once", once)
    return taken


def test_a_disturbed_load_is_measured_again_and_the_second_counts(gate, monkeypatch):
    fine = load(CELL.id, FINE)
    taken = loads_of(monkeypatch, replace(fine, void="disturbed: GPU 0 throttled"), fine)
    assert gate.measure(Workload(1, 4, 32, 1)) is fine
    assert taken == [True, True]


def test_a_load_that_is_disturbed_twice_is_void_for_good(gate, monkeypatch):
    hot = replace(load(CELL.id, FINE), void="disturbed: GPU 0 throttled")
    taken = loads_of(monkeypatch, hot, replace(hot, void="disturbed: process 7 computed"))
    assert gate.measure(Workload(1, 4, 32, 1)).void == (
        "disturbed: process 7 computed\nmeasured twice; the first time disturbed: GPU 0 throttled"
    )
    assert len(taken) == 2


def test_a_load_that_is_void_for_another_reason_is_not_measured_again(gate, monkeypatch):
    taken = loads_of(monkeypatch, replace(load(CELL.id, FINE), void="request 3 failed"))
    assert gate.measure(Workload(1, 4, 32, 1)).void == "request 3 failed"
    assert len(taken) == 1


def test_what_was_broken_on_purpose_is_void_in_the_history_and_judged_all_the_same(gate, monkeypatch):
    monkeypatch.setattr(Gate, "key", lambda *_: KEY)
    gate.prepared.plan.request.fault = "forward:slow=0.30"
    assert gate.judge(load(CELL.id, FINE), Workload(1, 4, 32, 1)).state == "no_baseline"
    (kept,) = history.read(gate.baselines.folder, KEY.matrix, KEY.cell)
    assert kept.void == "broken on purpose: --fault=forward:slow=0.30"


def test_the_launch_that_became_the_baseline_is_no_night_after_it(gate, monkeypatch):
    monkeypatch.setattr(Gate, "key", lambda *_: KEY)
    ended = now() - timedelta(hours=5)
    measured = replace(load(CELL.id, FINE), conditions={"ended": ended.isoformat()})
    replace(gate, run="last night", loads={}).judge(measured, Workload(1, 4, 32, 1))
    gate.baselines.record(KEY, measured, why="first", when=ended)
    assert gate.judge(load(CELL.id, FINE), Workload(1, 4, 32, 1)).nights is None


def test_the_verdict_sees_the_nights_before_and_the_history_sees_tonight(gate, monkeypatch):
    monkeypatch.setattr(Gate, "key", lambda *_: KEY)
    workload = Workload(1, 4, 32, 1)
    gate.baselines.record(KEY, load(CELL.id, FINE), why="first", when=now() - timedelta(days=9))
    for night in range(1, 5):
        earlier = replace(gate, run=f"night {night}", loads={})
        assert earlier.judge(load(CELL.id, FINE), workload).baseline_n == 1
    verdict = gate.judge(load(CELL.id, FINE), workload)
    assert verdict.nights is not None and verdict.nights.count == 5
    assert [entry.run for entry in history.read(gate.baselines.folder, KEY.matrix, KEY.cell)] == [
        *(f"night {night}" for night in range(1, 5)),
        "tonight",
    ]


def test_the_history_s_change_is_told_beside_the_verdict_and_kept_with_the_measurement(gate, monkeypatch):
    monkeypatch.setattr(Gate, "key", lambda *_: KEY)
    for night in range(12):
        value = 80.0 if night < 6 else 40.0
        past = replace(load(CELL.id, FINE), output_tokens_per_second=value)
        when = now() - timedelta(days=30 - night)
        kept = history.entry(KEY, past, run=f"night {night}", when=when)
        history.append(gate.baselines.folder, KEY.matrix, KEY.cell, kept)
    verdict = gate.judge(load(CELL.id, FINE), Workload(1, 4, 32, 1))
    assert verdict.state == "no_baseline"
    assert "the history shows a change (advice, no verdict): 80.0 -> 40.0 tok/s (-50.0%)" in verdict.text
    (line,) = (gate.store.cell_folder(CELL.id) / "measurements.jsonl").read_text().splitlines()
    assert "80.0 -> 40.0 tok/s" in line


@pytest.mark.parametrize(
    ("fault", "kind"), [("machine", InfrastructureFault), ("server", AssertionError)], ids=["machine", "server"]
)
def test_a_spoiled_load_is_broken_by_the_machine_and_failed_by_the_server(gate, monkeypatch, fault, kind):
    """The throughput check itself, on a gate that measures this."""
    void = (
        {"machine": ["GPU 0 throttled"], "server": []} if fault == "machine" else {"machine": [], "server": ["eager"]}
    )
    spoiled = replace(
        load(CELL.id, FINE),
        void="disturbed: as it is",
        conditions={"machine": {"void": void, "figures": {}, "short": ""}},
    )
    loads_of(monkeypatch, spoiled, spoiled)
    monkeypatch.setattr(Gate, "key", lambda *_: KEY)
    config = SimpleNamespace(stash=pytest.Stash())
    with pytest.raises(kind, match="void, not judged: disturbed: as it is"):
        throughput.test_tokens_per_second(gate, Workload(1, 4, 32, 1), SimpleNamespace(config=config, node=None))
