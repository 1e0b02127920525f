"""However a run ends, nothing of it is left."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

HANGS = {"hang": "weight_load"}


def launched(log: Path) -> bool:
    return log.exists() and b"Load weight begin" in log.read_bytes()


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 2), (signal.SIGKILL, -9), (signal.SIGTERM, -15)])
def test_no_process_is_left(suite: Any, wait_until: Any, sent: signal.Signals, code: int) -> None:
    process = suite.start("--cell", "nomtp", behaviour=HANGS)
    wait_until(lambda: launched(suite.folder / "out" / "cells" / "nomtp" / "server.log"), "the launch")
    assert len(suite.processes()) > 1
    process.send_signal(sent)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    wait_until(lambda: not suite.processes(), f"all processes gone after {sent.name}")


def test_a_disk_that_takes_no_more_results_ends_the_run_in_words(suite: Any, wait_until: Any) -> None:
    process = suite.start("--cell", "nomtp", "-m", "parity or serving", behaviour={"tokens_per_second": 200.0})
    results = suite.folder / "out" / "allure-results"
    wait_until(lambda: launched(suite.folder / "out" / "cells" / "nomtp" / "server.log"), "the launch")
    shutil.rmtree(results)
    results.write_text("")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3, output
    assert "the results cannot be kept" in output
    assert "Traceback" not in output
    assert "INTERNALERROR" not in output
    assert not suite.processes()


def test_a_run_without_a_terminal_ends_as_any_other(suite: Any) -> None:
    ended = suite.run("-p", "no:terminal", "-m", "startup", "--cell", "nomtp")
    assert ended.code == 0, ended.output
    assert ended.check("nomtp", "startup").state == "passed"


def test_an_interrupted_run_says_so_and_is_not_green(suite: Any, wait_until: Any) -> None:
    process = suite.start("--cell", "nomtp", behaviour=HANGS)
    wait_until(lambda: launched(suite.folder / "out" / "cells" / "nomtp" / "server.log"), "the launch")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert "GREEN" not in output
    page = (suite.folder / "out" / "index.html").read_text()
    assert "cut short" in page.lower()
