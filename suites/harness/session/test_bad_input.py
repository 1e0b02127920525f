"""What is asked wrongly ends in one message and pytest's exit code 4, before any server is launched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CPU = ("--matrix=matrices/cpu-small.yaml", "--server-command=")
MATRIX = (HERE / "standin.yaml").read_text()


def refused(ended: Any) -> str:
    """The message of a run that was refused; asserts all that is common to refusals."""
    assert ended.code == 4, ended.output
    assert "Traceback" not in ended.output
    assert "INTERNALERROR" not in ended.output
    assert not list(ended.out.glob("cells/*/server.log")), "a server was launched"
    errors = [line for line in ended.output.splitlines() if line.startswith("ERROR:")]
    assert len(errors) == 1, ended.output
    return str(ended.output[ended.output.index("ERROR:") :])


def matrix(suite: Any, old: str, new: str) -> str:
    assert old in MATRIX
    path = suite.folder / "changed.yaml"
    path.write_text(MATRIX.replace(old, new))
    return str(path)


def test_an_unknown_key_names_file_line_and_key(suite: Any) -> None:
    message = refused(suite.run(f"--matrix={matrix(suite, 'axes:', 'axis:')}"))
    assert "changed.yaml:11: axis: unknown key; did you mean axes?" in message


def test_an_impossible_cell(suite: Any) -> None:
    path = matrix(suite, "num_steps: 1, eagle_topk: 1, num_draft_tokens: 2", "num_steps: 0, eagle_topk: 1")
    assert "num_steps" in refused(suite.run(f"--matrix={path}"))


def test_a_cell_that_sglang_would_refuse_is_named_with_the_reason(suite: Any) -> None:
    path = matrix(suite, "eagle_topk: 1, num_draft_tokens: 2", "eagle_topk: 2, num_draft_tokens: 9")
    message = refused(suite.run(f"--matrix={path}", "--cell", "eagle-s1-k2-d9"))
    assert "eagle-s1-k2-d9" in message
    assert "num_draft_tokens" in message


def test_a_matrix_that_is_not_there(suite: Any) -> None:
    assert "nowhere.yaml" in refused(suite.run("--matrix=nowhere.yaml"))


def test_a_matrix_for_other_hardware(suite: Any) -> None:
    message = refused(suite.run("--matrix=matrices/rtx-pro-6000-dsv4-flash.yaml"))
    assert "RTX PRO 6000" in message


def test_a_cell_that_does_not_exist(suite: Any) -> None:
    message = refused(suite.run("--cell", "eagle-s2*"))
    assert "eagle-s2*" in message
    assert "eagle-s1-k1-d2" in message


def test_more_gpus_than_there_are(suite: Any) -> None:
    assert "--gpus 4096" in refused(suite.run("--gpus", "4096"))


def test_no_such_model(suite: Any) -> None:
    assert "./no/model" in refused(suite.run("--model", "./no/model"))


def test_no_sglang_in_the_interpreter(suite: Any) -> None:
    ended = suite.run(*CPU, "--sglang-python=/usr/bin/python3")
    assert "no SGLang" in refused(ended)


def test_no_such_interpreter(suite: Any) -> None:
    ended = suite.run(*CPU, "--sglang-python=/no/python")
    assert "/no/python" in refused(ended)


def test_a_fault_that_does_not_exist(suite: Any) -> None:
    ended = suite.run(*CPU, "--fault", "verify:sing")
    assert "verify:accept_wrong" in refused(ended)


def test_a_folder_that_cannot_take_the_results(suite: Any) -> None:
    (suite.folder / "file").write_text("")
    assert "file" in refused(suite.run(f"--out={suite.folder / 'file'}"))


def test_a_folder_that_another_run_writes_to(suite: Any, wait_until: Any) -> None:
    first = suite.start("--cell", "nomtp", behaviour={"hang": "weight_load"})
    log = suite.folder / "out" / "cells" / "nomtp" / "server.log"
    wait_until(log.exists, "the launch")
    second = suite.run("--cell", "nomtp")
    assert second.code == 4, second.output
    assert "another run is writing its results there" in second.output
    assert first.poll() is None
    assert log.exists()
    first.kill()
    first.communicate()
    wait_until(lambda: not suite.processes(), "the first run is gone")
    assert suite.run("--cell", "nomtp", "-m", "startup").code == 0


@pytest.mark.parametrize("content", [b"{bad\n", b"\xff\xfe\n"])
def test_baselines_that_cannot_be_read(suite: Any, content: bytes) -> None:
    path = suite.folder / "baselines" / "standin" / "nomtp.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert "nomtp.jsonl" in refused(suite.run("-m", "throughput", "--cell", "nomtp"))


def test_baselines_that_cannot_be_written(suite: Any) -> None:
    (suite.folder / "file").write_text("")
    where = f"--baselines={suite.folder / 'file'}"
    assert "no baselines can be written" in refused(suite.run(where, "--record-baselines", "--cell", "nomtp"))


def test_no_folder_for_locks(suite: Any) -> None:
    (suite.folder / "locks").write_text("")
    ended = suite.run("--cell", "nomtp")
    assert ended.code == 3
    assert ended.output.count("MTPGATE_RUNTIME") == 1, ended.output
    assert "Traceback" not in ended.output
    assert not list(ended.out.glob("cells/*"))


def test_parallel_cells_are_refused(suite: Any) -> None:
    assert "without -n" in refused(suite.run("-n", "2"))


@pytest.mark.parametrize("text", ["waivers: [{cell: nomtp}]", "waivers: ["])
def test_a_broken_waiver_file(suite: Any, text: str) -> None:
    path = suite.folder / "broken.yaml"
    path.write_text(text)
    assert "broken.yaml:1" in refused(suite.run(f"--known-bad={path}"))


def test_an_argument_that_no_flag_fits_is_said_once_for_all_cells(suite: Any) -> None:
    message = refused(suite.run(f"--matrix={matrix(suite, 'mem_fraction_static', 'mem_fracton_static')}"))
    assert message.count("mem_fracton_static") == 1
    assert "nomtp, eagle-s1-k1-d2, eagle-s3-k1-d4" in message


def test_a_history_that_cannot_be_read(suite: Any) -> None:
    path = suite.folder / "baselines" / "history" / "standin" / "nomtp.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("{\n")
    message = refused(suite.run("-m", "throughput", "--cell", "nomtp"))
    assert "nomtp.jsonl, line 1: the line: " in message and "move the file away" in message
