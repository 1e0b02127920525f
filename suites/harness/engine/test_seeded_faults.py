"""The real engine, broken on purpose: the right check goes red, with the right words. Minutes; ``make seeded``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mtpgate.report.records import CheckRecord
from mtpgate.report.run import load_run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[3]
CELL = "eagle-s1-k1-d2"


class Suite:
    """``pytest`` on the CPU matrix, with folders of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"

    def command(self, *arguments: str) -> list[str]:
        fixed = ["--matrix=matrices/cpu-small.yaml", f"--out={self.out}", f"--baselines={self.folder / 'baselines'}"]
        return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--cell", CELL, *fixed, *arguments]

    def environment(self) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        return {**plain, "MTPGATE_SEEDED": str(self.folder)}

    def run(self, *arguments: str) -> tuple[int, str]:
        ended = subprocess.run(
            self.command(*arguments), cwd=ROOT, env=self.environment(), capture_output=True, text=True, check=False
        )
        return ended.returncode, ended.stdout + ended.stderr

    def check(self, check: str, cell: str = CELL) -> CheckRecord:
        rows = [row for row in load_run(self.out).cells if row.info.id == cell]
        found = [record for row in rows for record in row.checks if record.check == check]
        return next((record for record in found if record.state == "failed"), found[0])

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("MTPGATE_SEEDED") == str(self.folder):
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return Suite(tmp_path_factory.mktemp("seeded"))


def test_a_wrongly_accepted_token_fails_parity_and_nothing_of_the_reference(suite: Suite) -> None:
    code, output = suite.run("-m", "parity or acceptance", "--fault", "verify:accept_wrong")
    record = suite.check("parity")
    assert (code, record.state) == (1, "failed"), output
    assert "token at" in record.message
    assert suite.check("parity", "nomtp").state == "passed", output


# Everything but the verify step is left alone, so the reference, which has none, stays sound.
@pytest.mark.seeded_answers
@pytest.mark.parametrize("fault", ["cache:stale_kv", "verify:drop_bonus"])
def test_an_answer_that_a_verify_step_spoils_fails_parity_singly_and_in_a_batch(suite: Suite, fault: str) -> None:
    code, output = suite.run("-m", "parity", "--fault", fault)
    record = suite.check("parity")
    assert (code, record.state) == (1, "failed"), output
    assert "single: 12 of 12" not in record.message
    assert "batch: 12 of 12" not in record.message
    assert suite.check("parity", "nomtp").state == "passed", output


@pytest.mark.seeded_answers
@pytest.mark.parametrize("fault", ["cache:mix_slots", "forward:nan"])
def test_what_befalls_a_request_in_company_only_fails_parity_in_the_batch(suite: Suite, fault: str) -> None:
    code, output = suite.run("-m", "parity", "--fault", fault)
    record = suite.check("parity")
    assert (code, record.state) == (1, "failed"), output
    assert "single: 12 of 12 answers equal" in record.message
    assert "batch: 12 of 12" not in record.message
    assert suite.check("parity", "nomtp").state == "passed", output


@pytest.mark.seeded_answers
def test_a_draft_head_of_random_weights_fails_acceptance_and_keeps_parity(suite: Suite) -> None:
    code, output = suite.run("-m", "parity or acceptance", "--fault", "draft_weights:random")
    record = suite.check("acceptance")
    assert (code, record.state) == (1, "failed"), output
    assert "accept" in record.message
    assert suite.check("parity").state == "passed", output


def test_a_slower_engine_fails_throughput_against_its_recorded_baseline(suite: Suite) -> None:
    code, output = suite.run("-m", "throughput", "--record-baselines")
    assert code == 0, output
    # Twice as slow: far beyond the noise of a shared machine. What smaller drops are found is the rule's own test.
    code, output = suite.run("-m", "throughput", "--fault", "forward:slow=1.0")
    record = suite.check("throughput")
    assert (code, record.state) == (1, "failed"), output
    assert "regression" in record.message
    assert "step time moved" in record.message
    assert "confirmed by a relaunch" in record.message
    assert (suite.out / "cells" / CELL / "server-2.log").exists()


def test_an_out_of_memory_in_the_load_is_a_failed_start_with_its_phase(suite: Suite) -> None:
    code, output = suite.run("-m", "startup", "--fault", "weights:raise_oom")
    record = suite.check("startup")
    assert (code, record.state) == (1, "failed"), output
    assert "oom_weights in weight_load" in record.message


def test_a_fit_finds_a_fraction_below_the_one_that_runs_out_of_memory(tmp_path: Path) -> None:
    options = ("--matrix=matrices/cpu-small.yaml", f"--out={tmp_path}", "--max-launches=2", "--json")
    ended = subprocess.run(
        [sys.executable, "-m", "mtpgate", "fit", "nomtp", "--fault=first_forward:raise_oom_above=0.45", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["refused"]["value"] == 0.5
    assert found["refused"]["text"].startswith("oom_serving in warmup: ")
    assert 0 < found["fraction"] <= 0.45


def test_kill_9_of_pytest_leaves_no_server(
    tmp_path: Path, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    suite = Suite(tmp_path)
    process = subprocess.Popen(
        suite.command("-m", "startup", "--fault", "weights:hang"),
        cwd=ROOT,
        env=suite.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        log = suite.out / "cells" / CELL / "server.log"
        wait_until(lambda: log.exists() and b"Load weight begin" in log.read_bytes(), "weights being loaded")
        assert len(suite.processes()) >= 4, "pytest, guardian, server and scheduler"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_until(lambda: not suite.processes(), "all processes gone")
