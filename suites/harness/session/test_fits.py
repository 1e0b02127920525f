"""``--fit``: a cell that runs out of memory is relaunched as advised; it stays failed, and says what fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
CELL = "eagle-s1-k1-d2"
GPU = {"device": "gpu", "memory": {}}
"""Like that of the first matrix: with graphs up to 32 requests, 0.62 starts and 0.63 does not."""


@pytest.fixture
def matrix(suite: Any) -> Any:
    """``matrix(0.7)``: the stand-in's cells at a fraction, with graphs up to 32 requests."""

    def write(fraction: float) -> str:
        path = suite.folder / "memory.yaml"
        text = (HERE / "standin.yaml").read_text()
        old = "mem_fraction_static: 0.5"
        assert old in text
        path.write_text(text.replace(old, f"mem_fraction_static: {fraction}\n  cuda_graph_max_bs: 32"))
        return f"--matrix={path}"

    return write


def folder(ended: Any) -> Path:
    return Path(ended.out) / "cells" / CELL


def fits(ended: Any) -> dict[str, Any]:
    kept = json.loads((folder(ended) / "fit.json").read_text())
    return dict(kept["value"])


@pytest.mark.parametrize(("fraction", "kind"), [(0.7, "oom_graph_capture in capture_"), (0.4, "not_enough_memory in")])
def test_a_cell_without_room_says_what_fits_and_stays_failed(
    suite: Any, matrix: Any, fraction: float, kind: str
) -> None:
    ended = suite.run("-m", "startup", "--cell", CELL, "--fit", matrix(fraction), behaviour=GPU)
    record = ended.check(CELL, "startup")
    assert (ended.code, record.state) == (1, "failed"), ended.output
    assert kind in record.message.splitlines()[0]
    assert "\nfit: it starts with " in record.message
    kept = fits(ended)
    assert kept["fits"] == kept["attempts"][-1]["change"]
    assert kept["attempts"][-1]["state"] == "ready"
    log = folder(ended) / f"server-fit-{len(kept['attempts'])}.log"
    assert "ready to roll" in log.read_text()
    assert "ready to roll" not in (folder(ended) / "server.log").read_text()
    assert not suite.processes()


def test_a_known_bad_cell_stays_known_bad(suite: Any, matrix: Any) -> None:
    row = {"cell": CELL, "check": "startup", "kind": "oom_graph_capture", "reason": "too large"}
    options = (f"--known-bad={suite.waivers([row])}", matrix(0.7))
    ended = suite.run("-m", "startup", "--cell", CELL, "--fit", *options, behaviour=GPU)
    assert ended.code == 0, ended.output
    record = ended.check(CELL, "startup")
    assert record.state == "known_bad"
    assert "fit: it starts with " in record.message


def test_an_interrupted_fit_leaves_no_process(suite: Any, matrix: Any, wait_until: Any) -> None:
    import signal

    slow = {**GPU, "phase_seconds": 0.3}
    process = suite.start("-m", "startup", "--cell", CELL, "--fit", matrix(0.7), behaviour=slow)
    log = suite.folder / "out" / "cells" / CELL / "server-fit-1.log"
    wait_until(log.exists, "the relaunch")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    wait_until(lambda: not suite.processes(), "all processes gone")


def test_another_failure_is_not_relaunched(suite: Any) -> None:
    dies = {"device": "gpu", "die": {"phase": "capture_target_verify", "how": "exit", "code": 3}}
    ended = suite.run("-m", "startup", "--cell", CELL, "--fit", behaviour=dies)
    assert ended.code == 1
    assert "fit:" not in ended.check(CELL, "startup").message
    assert not list(folder(ended).glob("server-fit-*.log"))


def test_without_the_option_nothing_is_relaunched(suite: Any, matrix: Any) -> None:
    ended = suite.run("-m", "startup", "--cell", CELL, matrix(0.7), behaviour=GPU)
    assert ended.code == 1
    assert "oom_graph_capture" in ended.check(CELL, "startup").message
    assert not (folder(ended) / "fit.json").exists()
    assert not list(folder(ended).glob("server-fit-*.log"))
