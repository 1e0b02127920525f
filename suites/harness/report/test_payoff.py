"""Does MTP pay: what counts, in words on the terminal and the page, and as plots."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mtpgate.judge.payoff import Point, payoff
from mtpgate.report import payoff_chart
from mtpgate.report.page import page
from mtpgate.report.payoff import lines, payoff_of, short_lines
from mtpgate.report.records import MeasurementRecord
from mtpgate.report.run import Run, load_run
from mtpgate.report.store import Store
from mtpgate.report.summary import render_summary
from suites.harness.report import examples
from suites.harness.report.document import parse
from suites.harness.report.examples import EAGLE, REFERENCE, Example, outcome, write


def run_of(tmp_path: Path, example: Example = examples.GREEN, *more: tuple[str, MeasurementRecord]) -> Run:
    root = write(tmp_path / "out", example)
    for cell, record in more:
        Store(root).add_measurement(cell, record)
    return load_run(root)


def measured(workload: str, speed: float, **more: object) -> MeasurementRecord:
    concurrency = int(workload.removeprefix("C"))
    repeats = (speed * 0.99, speed, speed * 1.01)
    return MeasurementRecord(workload, concurrency, speed, repeats, 2.5, None, None, **more)  # type: ignore[arg-type]


def test_each_workload_has_its_best_cell_with_figures(tmp_path: Path) -> None:
    told = payoff_of(run_of(tmp_path))
    assert told is not None and not told.left_out
    first, second, *crossovers = lines(told)
    assert first.startswith(f"C1: MTP pays; {EAGLE[1]} at 34.0 tok/s is 1.60x (")
    assert f"of {REFERENCE}" in first and "n=3 repeats of one launch" in first
    assert second.startswith(f"C16: MTP pays; {EAGLE[0]} at 173.1 tok/s is 1.16x (")
    assert all("not within what was measured" in line for line in crossovers)


def test_the_terminal_has_it_in_a_line_a_workload(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    text = render_summary(run, width=100)
    told = payoff_of(run)
    assert told is not None
    for line in short_lines(told):
        assert line in text
    assert f"MTP at C1: pays, {EAGLE[1]} 1.60x" in text


def test_a_crossover_between_the_loads_is_told(tmp_path: Path) -> None:
    told = payoff_of(run_of(tmp_path))
    assert told is not None
    (crossing,) = (cell for cell in told.payoff.cells if cell.crossings)
    assert crossing.cell == EAGLE[2]
    assert short_lines(told)[-1].startswith(f"MTP: {EAGLE[2]} pays up to about C")


@pytest.mark.parametrize(
    ("more", "reason"),
    [({"void": "the GPU throttled"}, "void: the GPU throttled"), ({"verdict_state": "unstable"}, "unstable")],
)
def test_a_void_or_unstable_measurement_claims_nothing(tmp_path: Path, more: dict[str, object], reason: str) -> None:
    told = payoff_of(run_of(tmp_path, examples.GREEN, (EAGLE[1], measured("C1", 900.0, **more))))
    assert told is not None
    assert told.left_out == (f"{EAGLE[1]} C1: {reason}",)
    assert told.payoff.best["C1"].point.cell == EAGLE[2]


def test_a_cell_with_wrong_answers_is_not_the_fastest(tmp_path: Path) -> None:
    wrong = replace(examples.GREEN, outcomes=outcome(EAGLE[1], "parity", "failed", "2 of 12 differ"))
    told = payoff_of(run_of(tmp_path, wrong))
    assert told is not None
    assert f"{EAGLE[1]} C1: its parity failed" in told.left_out
    assert EAGLE[1] not in {point.cell for point in told.payoff.points}


def test_a_void_reference_leaves_nothing_to_say(tmp_path: Path) -> None:
    void = [(REFERENCE, measured(load, 20.0, void="cut")) for load in ("C1", "C16")]
    run = run_of(tmp_path, examples.GREEN, *void)
    assert payoff_of(run) is None
    assert "Does MTP pay" not in page(run)
    assert "MTP at" not in render_summary(run)


def test_a_reference_that_is_fastest_is_said_to_be(tmp_path: Path) -> None:
    run = run_of(tmp_path, examples.GREEN, (REFERENCE, replace(measured("C1", 50.0), accept_length=None)))
    told = payoff_of(run)
    assert told is not None
    assert next(lines(told)).startswith("C1: MTP does not pay; ")
    assert f"fastest is {REFERENCE}, 50.0 tok/s" in next(lines(told))


def test_the_page_has_the_table_and_a_plot_for_each_question(tmp_path: Path) -> None:
    document = parse(page(run_of(tmp_path)))
    plots = document.all("svg", css="plot")
    assert [plot.all("title")[0].text for plot in plots[:1]] == ["Speed-up over the reference by concurrency"]
    assert len(plots) == 3
    assert len(plots[0].all("circle")) == len(EAGLE) * 2


def test_nothing_leaves_its_plot() -> None:
    points = [Point("ref", "C1", 1, 1.0, (1.0,)), Point("ref", "C64", 64, 1e9, (1e9,))]
    points += [Point("mtp", "C1", 1, 1e6, (1e6,), 1.0), Point("mtp", "C64", 64, 1.0, (1.0,), 40.0)]
    found = payoff(points, "ref", ["mtp"])
    assert found is not None
    for plot in (payoff_chart.speedup_plot(found), payoff_chart.accept_plot(found, "C1")):
        for element in parse(plot).one("svg").inside():
            for name in ("x", "x1", "x2", "cx", "y", "y1", "y2", "cy"):
                if name in element.attributes:
                    assert 0 <= float(element.attributes[name].rstrip("%")) <= 100


def test_one_concurrency_alone_can_be_plotted() -> None:
    found = payoff([Point("ref", "C1", 1, 10.0, (10.0,)), Point("mtp", "C1", 1, 15.0, (15.0,), 2.0)], "ref", ["mtp"])
    assert found is not None
    assert payoff_chart.speedup_plot(found).count("<circle") == 1
