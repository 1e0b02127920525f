"""Runs of two cells and two workloads as the store holds them, with what a test wants to have gone wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from mtpgate.judge.baselines import BaselineKey
from mtpgate.report.records import (
    CellRecord,
    CheckRecord,
    CheckState,
    ExpectedCheck,
    FinishRecord,
    LostCheck,
    MeasurementRecord,
    RunInfo,
)
from mtpgate.report.run import Run, load_run
from mtpgate.report.store import Store

NOMTP, EAGLE = "nomtp", "eagle-s1-k1-d2"
SPEEDS = {(NOMTP, "C1"): 20.0, (NOMTP, "C16"): 140.0, (EAGLE, "C1"): 30.0, (EAGLE, "C16"): 170.0}
STARTED = "2026-03-02T01:00:00+00:00"
SPEED_TEST = "suites/throughput/test_throughput.py::test_tokens_per_second"


def key(cell: str, workload: str, **changes: object) -> BaselineKey:
    parts: dict[str, object] = {
        "matrix": "small",
        "cell": cell,
        "workload": f"{workload} in32 out32 requests16",
        "sglang": "0.5.23",
        "model": "builtin:small-mtp 1",
        "hardware": "2 cores",
        "engine": "embedded",
        "driver": "570.1",
    }
    return BaselineKey.model_validate(parts | changes)


@dataclass
class Night:
    """A run under ``root``; written by :meth:`write`."""

    root: Path
    started: str = STARTED
    factor: float = 1.0
    """All speeds times this."""
    changes: dict[str, object] = field(default_factory=dict)
    """Parts of the keys."""
    states: dict[tuple[str, str], tuple[CheckState, str]] = field(default_factory=dict)
    """(cell, test) -> state and message, where it is not passed; a test is ``parity`` or a workload."""
    records: dict[tuple[str, str], dict[str, object]] = field(default_factory=dict)
    """(cell, workload) -> fields of the record that differ."""
    silent: tuple[str, ...] = ()
    """Cells whose parity was collected and never answered."""
    lost: tuple[str, ...] = ()
    """Cells whose parity was lost."""
    fault: str = ""
    finished: bool = True

    def write(self) -> Run:
        store = Store(self.root)
        store.begin_run(
            RunInfo(
                started=self.started,
                matrix_name="small",
                matrix_path="matrices/small.yaml",
                sglang_version="0.5.23",
                python="3.11.7",
                platform="Linux",
                host="box",
                suite_revision=None,
                hardware="CPU, 2 cores",
                command_line="pytest -m mtp",
                cells=tuple(CellRecord(id=cell) for cell in (NOMTP, EAGLE)),
                fault=self.fault,
            )
        )
        checks = [check for cell in (NOMTP, EAGLE) for check in self._checks(cell)]
        store.expect(ExpectedCheck(check.cell, check.check, check.test_id) for check in checks)
        for check in checks:
            if check.check != "parity" or check.cell not in (*self.silent, *self.lost):
                store.add_check(check)
        for cell, workload in SPEEDS:
            store.add_measurement(cell, self._measurement(cell, workload))
        store.write_lost([LostCheck(c.cell, c.check, c.test_id, "its worker died") for c in checks if self._lost(c)])
        if self.finished:
            store.finish_run(FinishRecord("2026-03-02T02:00:00+00:00", 0))
        return load_run(self.root)

    def _lost(self, check: CheckRecord) -> bool:
        return check.check == "parity" and check.cell in self.lost

    def _checks(self, cell: str) -> Iterable[CheckRecord]:
        tests = [("parity", "parity", f"suites/parity/test_parity.py::test_answers[{cell}]")]
        tests += [("throughput", load, f"{SPEED_TEST}[{cell}-{load}]") for load in ("C1", "C16")]
        for check, name, test_id in tests:
            state, message = self.states.get((cell, name), ("passed", ""))
            yield CheckRecord(cell, check, test_id, f"asks {name}", state, message)

    def _measurement(self, cell: str, workload: str) -> MeasurementRecord:
        speed = SPEEDS[cell, workload] * self.factor
        record = MeasurementRecord(
            workload=workload,
            concurrency=int(workload[1:]),
            output_tokens_per_second=speed,
            repeats=(speed * 0.99, speed, speed * 1.01),
            accept_length=1.8 if cell == EAGLE else None,
            ttft_p50_seconds=0.1,
            tpot_p50_seconds=0.02,
            verdict_state="no_baseline",
            when=self.started.replace("T01:00:00", "T01:20:00.123"),
            key=key(cell, workload, **self.changes).model_dump(),
            accept_counts={"prose-1": (32, 18)} if cell == EAGLE else {},
        )
        return replace(record, **self.records.get((cell, workload), {}))
