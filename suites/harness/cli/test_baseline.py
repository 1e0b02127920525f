"""``python -m mtpgate baseline``, as a person calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from suites.harness.review.bench_files import LINE, MATRIX, written
from suites.harness.review.nights import EAGLE, Night

ROOT = Path(__file__).parents[3]


class Baseline:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        given = [f"--baselines={self.folder / 'baselines'}", *arguments]
        line = [sys.executable, "-m", "mtpgate", "baseline", command, *given]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def baseline(tmp_path: Path) -> Baseline:
    Night(tmp_path / "out").write()
    return Baseline(tmp_path)


@pytest.mark.slow
def test_accept_show_and_diff(baseline: Baseline, tmp_path: Path) -> None:
    run = f"--run={tmp_path / 'out'}"
    assert "nothing has been accepted yet" in baseline("show").stdout
    assert "no launch of this cell and workload has been accepted" in baseline("diff", run).stdout
    ended = baseline("accept", run, "--why=first night", "--who=Ada", "*")
    assert ended.returncode == 0, ended.stderr
    assert f"accepted: {EAGLE} C16 in32 out32 requests16: 170.0 tok/s, accept length 1.80" in ended.stdout
    shown = baseline("show", EAGLE).stdout
    for words in ("170.0", "A: sglang 0.5.23, model builtin:small-mtp 1", " Ada ", "first night"):
        assert words in shown
    assert json.loads(baseline("show", "--json").stdout)[0]["launches"][0]["origin"]["who"] == "Ada"
    Night(tmp_path / "out", factor=0.9, changes={"driver": "580.2"}).write()
    told = baseline("diff", run).stdout
    for words in (
        "-10.0%",
        "The key has changed for all measurements:",
        "  driver: 570.1 -> 580.2",
        "still comparable: tokens/s and accept length",
    ):
        assert words in told


def test_a_refused_launch_is_one_message_and_exit_code_2(baseline: Baseline, tmp_path: Path) -> None:
    Night(tmp_path / "out", states={(EAGLE, "parity"): ("failed", "3 of 12 answers differ")}).write()
    ended = baseline("accept", f"--run={tmp_path / 'out'}", "--why=x", EAGLE)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "eagle-s1-k1-d2: parity failed: asks parity: 3 of 12 answers differ" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("accept", EAGLE), "--why"),
        (("accept", "--why=x"), "CELL"),
        (("accept", "--why=x", "--run=nowhere", EAGLE), "No run is stored in nowhere"),
        (("show", "eagle-s9"), "no such cell has accepted launches"),
        (("history", "eagle-s9"), "no such cell has been measured"),
        (("diff", "--run=nowhere"), "No run is stored in nowhere"),
        (("forget",), "No such command"),
    ],
)
def test_bad_use_is_one_message_and_exit_code_2(baseline: Baseline, arguments: tuple[str, ...], words: str) -> None:
    ended = baseline(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", ["show", "accept", "diff", "history", "import"])
def test_every_command_has_help_with_an_example(baseline: Baseline, command: str) -> None:
    assert f"Example: python -m mtpgate baseline {command}" in " ".join(baseline(command, "--help").stdout.split())


@pytest.mark.slow
def test_a_result_file_is_imported_shown_and_accepted(baseline: Baseline, tmp_path: Path) -> None:
    file, matrix = written(tmp_path, LINE), tmp_path / "small.yaml"
    matrix.write_text(MATRIX)
    asked = (str(file), f"--matrix={matrix}", f"--cell={EAGLE}", "--driver=570.1")
    missing = baseline("import", *asked)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.endswith("give --hardware\n")
    told = baseline("import", *asked, "--hardware=1 x NVIDIA X, 80.00 GiB")
    assert told.returncode == 0, told.stderr
    assert "mind: tokens/s of the whole pass" in told.stdout
    assert "nothing has been accepted yet" in baseline("show").stdout
    assert "160.0" in baseline("show", "--proposed").stdout
    assert baseline("accept", "--proposed", "--why=checked", EAGLE).returncode == 0
    assert "nothing is proposed" in baseline("show", "--proposed").stdout
    assert "night.jsonl" in baseline("show", EAGLE).stdout
    again = baseline("import", *asked, "--hardware=1 x NVIDIA X, 80.00 GiB")
    assert (again.returncode, "proposed before" in again.stderr) == (2, True)
