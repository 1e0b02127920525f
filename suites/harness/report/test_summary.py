"""The terminal's summary: one screen, 80 columns, plain where there is no terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpgate.report.run import load_run
from mtpgate.report.summary import render_summary
from suites.harness.report import examples
from suites.harness.report.examples import EAGLE, REFERENCE, Example, write

ALL = {name: value for name, value in vars(examples).items() if isinstance(value, Example)}


def lines_of(tmp_path: Path, example: Example, **options: object) -> list[str]:
    run = load_run(write(tmp_path / "out", example))
    return render_summary(run, **options).splitlines()  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", [*sorted(ALL), "many", "none"])
def test_it_fits_one_screen_and_is_plain_text(tmp_path: Path, name: str, width: int) -> None:
    example = {**ALL, "many": examples.many(120, 50), "none": Example(cells=())}[name]
    lines = lines_of(tmp_path, example, width=width, report="reports/out/index.html")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= width
    assert "\x1b" not in "".join(lines)
    assert lines[-1] == "Report: reports/out/index.html"


def test_verdict_next_step_and_figures_are_there(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, examples.SLOWER)
    assert lines[0] == "RED: 1 of 4 cells failed: eagle-s3-k1-d4 throughput C1 is 31.0 % below its"
    assert lines[2] == "Next: See if accept length or step time moved; then run this cell alone."
    assert lines[3].split() == ["accept", "ready"]
    assert " ".join(lines[4].split()) == "cell start parity accept speed serve t/s C1 t/s C16 length in s"
    assert lines[5].split() == [EAGLE[1], "ok", "ok", "ok", "FAIL", "ok", "23.6", "168.0", "2.63", "31"]
    assert lines[6].split() == [REFERENCE, "ok", "-", "ok", "ok", "ok", "21.3", "149.8", "-", "20"]


def test_each_further_failure_has_its_what_and_its_next_step(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, examples.OOM_AND_MORE)
    at = next(number for number, line in enumerate(lines) if line.startswith("x eagle-s3-k2-d6 parity"))
    assert "2 of 12 prompts differ from no-mtp" in lines[at]
    assert lines[at + 1] == "  next: Run this cell alone; if it differs again, speculation changes answers."


def test_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    text = "\n".join(lines_of(tmp_path, examples.many(120, 50)))
    assert "of them with a fault" in text
    assert "(+24 cells alike)" in text


def test_long_cell_ids_keep_both_their_ends(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, Example(cells=("eagle-s1-k1-d2-f0.60-bs16-with-more",)))
    assert any(line.startswith("eagle-s1..") and "th-more ok" in line for line in lines)


def test_colour_is_for_terminals_only(tmp_path: Path) -> None:
    assert "\x1b[" in "\n".join(lines_of(tmp_path, examples.SLOWER, terminal=True))


def test_hostile_text_reaches_the_terminal_as_text(tmp_path: Path) -> None:
    markup = examples.outcome(EAGLE[0], "parity", "failed", "[bold red]\x1b]0;title\x07\x1b[2J[/] \x9b31m end")
    text = "\n".join(lines_of(tmp_path, Example(outcomes=markup)))
    assert "[bold red]" in text
    assert not any(char in text for char in "\x1b\x07\x9b")


def test_a_long_message_is_cut_before_the_count_of_cells_like_it(tmp_path: Path) -> None:
    names = (EAGLE[1], EAGLE[2])
    long = {(name, "parity"): examples.check(name, "parity", "failed", f"{name} " + "x" * 200) for name in names}
    lines = lines_of(tmp_path, Example(died={EAGLE[0]: examples.OOM}, outcomes=long))
    assert any(line.startswith("x eagle-s3-k1-d4 xxx") and line.endswith("... (+1 cell alike)") for line in lines)
