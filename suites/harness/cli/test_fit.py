"""``python -m mtpgate fit`` on the stand-in, whose pretended GPU has room up to a fraction of 0.62."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SERVER = ROOT / "suites" / "harness" / "standin" / "server.py"
MATRIX = ROOT / "suites" / "harness" / "session" / "standin.yaml"
CELL = "eagle-s1-k1-d2"
GPU: dict[str, object] = {"device": "gpu", "memory": {}}

Fit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., list[str]]:
    def make(*arguments: str, fraction: float = 0.7) -> list[str]:
        text = MATRIX.read_text().replace(
            "mem_fraction_static: 0.5", f"mem_fraction_static: {fraction}\n  cuda_graph_max_bs: 32"
        )
        path = tmp_path / "memory.yaml"
        path.write_text(text)
        server = f"{sys.executable} {SERVER} --model-path {{model}} --host {{host}} --port {{port}} {{args}}"
        given = [f"--matrix={path}", f"--out={tmp_path / 'out'}", f"--server-command={server}"]
        return [sys.executable, "-m", "mtpgate", "fit", *given, *arguments]

    return make


@pytest.fixture
def environment(tmp_path: Path) -> Callable[..., dict[str, str]]:
    def make(behaviour: dict[str, object] | None = None) -> dict[str, str]:
        own = {"MTPGATE_RUNTIME": str(tmp_path / "locks"), "MTPGATE_STANDIN": json.dumps(behaviour or GPU)}
        return {**os.environ, **own}

    return make


@pytest.fixture
def fit(command: Callable[..., list[str]], environment: Callable[..., dict[str, str]]) -> Fit:
    """``fit(CELL, ..., fraction=0.7, behaviour={...})``: the command, ended."""

    def run(*arguments: str, behaviour: dict[str, object] | None = None, fraction: float = 0.7) -> Any:
        return subprocess.run(
            command(*arguments, fraction=fraction),
            cwd=ROOT,
            env=environment(behaviour),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run


def kept(tmp_path: Path) -> dict[str, Any]:
    return dict(json.loads((tmp_path / "out" / f"fit-{CELL}.json").read_text()))


def test_it_ends_with_the_largest_fraction_and_the_launch_that_shows_it(fit: Fit, tmp_path: Path) -> None:
    ended = fit(CELL)
    assert ended.returncode == 0, ended.stderr
    assert (
        "largest fraction that starts: 0.62 (0.63 does not: oom_graph_capture in capture_draft_extend" in ended.stdout
    )
    assert "largest graph batch limit that starts there: 32 (48 does not" in ended.stdout
    document = kept(tmp_path)
    assert (document["cell"], document["fraction"], document["graph_max_bs"]) == (CELL, 0.62, 32)
    assert document["exact"]
    logs = list((tmp_path / "out" / f"fit-{CELL}").glob("launch-*.log"))
    assert len(logs) == len(document["attempts"])
    assert "largest fraction that starts: 0.62" in (tmp_path / "out" / f"fit-{CELL}.txt").read_text()
    assert "launch 1 of at most 12: mem_fraction_static=0.7" in ended.stderr


def test_from_below_it_finds_the_same(fit: Fit) -> None:
    ended = fit(CELL, "--json", fraction=0.4)
    told = json.loads(ended.stdout)
    assert (ended.returncode, told["fraction"]) == (0, 0.62), ended.stderr
    assert told["too_low"]["text"] == "not_enough_memory in kv_pool"


def test_few_launches_end_with_the_interval(fit: Fit, tmp_path: Path) -> None:
    ended = fit(CELL, "--max-launches", "2", fraction=0.5)
    assert ended.returncode == 0, ended.stderr
    assert "between 0.5 (starts) and " in ended.stdout
    assert "2 launches are used up" in ended.stdout
    assert not kept(tmp_path)["exact"]


def test_nothing_that_fits_is_exit_code_1(fit: Fit) -> None:
    large = {"device": "gpu", "memory": {"weights": 93.0}}
    ended = fit(CELL, behaviour=large)
    assert ended.returncode == 1
    assert "no fraction is known to start" in ended.stdout


def test_another_failure_ends_it_and_is_told(fit: Fit, tmp_path: Path) -> None:
    dies = {"device": "gpu", "die": {"phase": "capture_target_verify", "how": "exit", "code": 3}}
    ended = fit(CELL, behaviour=dies)
    assert ended.returncode == 1
    assert "it fails otherwise" in ended.stdout
    assert len(kept(tmp_path)["attempts"]) == 1


def test_ctrl_c_ends_the_launch_and_keeps_what_is_known(
    command: Callable[..., list[str]],
    environment: Callable[..., dict[str, str]],
    tmp_path: Path,
    wait_until: Callable[[Callable[[], bool], str], None],
) -> None:
    slow = {**GPU, "phase_seconds": 0.2}
    process = subprocess.Popen(
        ["env", "--default-signal=INT", *command(CELL)],
        cwd=ROOT,
        env=environment(slow),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    second = tmp_path / "out" / f"fit-{CELL}" / "launch-2.log"
    wait_until(lambda: second.exists() and b"Load weight" in second.read_bytes(), "the second launch")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "interrupted" in output
    assert "Traceback" not in output
    document = kept(tmp_path)
    assert (document["ended"], len(document["attempts"])) == ("interrupted", 1)
    assert "ready to roll" not in second.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("eagle-s9*",), "eagle-s9*"),
        (("eagle-*",), "names 2 cells: eagle-s1-k1-d2, eagle-s3-k1-d4"),
        ((CELL, "--resolution", "0.9"), "--resolution 0.9"),
        ((CELL, "--max-launches", "0"), "--max-launches 0"),
        ((CELL, "--gpus", "4096"), "--gpus 4096"),
        ((CELL, "--fault=pool:raise_oom_above=0.4"), "--fault"),
    ],
)
def test_bad_use_is_one_message_before_any_launch(
    fit: Fit, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    ended = fit(*arguments)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.glob("out/fit-*/launch-*.log"))
