"""Bars: in proportion, named, and within their axis whatever the figures."""

from __future__ import annotations

import pytest

from mtpgate.report import charts
from mtpgate.report.records import LaunchRecord, MeasurementRecord, PhaseSpan
from suites.harness.report.document import Element, parse


def measured(value: float, **more: object) -> MeasurementRecord:
    return MeasurementRecord("C1", 1, value, (value, value * 1.1), None, None, None, **more)  # type: ignore[arg-type]


def svg(markup: str) -> Element:
    return parse(markup).one("svg")


def test_a_bar_is_as_long_as_its_value_on_the_scale() -> None:
    chart = svg(charts.speed_bar(measured(30.0, baseline_mean=40.0), 60.0))
    assert chart.one("rect").attributes["width"] == "50%"
    assert chart.one("line", css="base").attributes["x1"] == "66.67%"
    assert len(chart.all("circle")) == 2


@pytest.mark.parametrize("value", [-1.0, 0.0, 1e9])
def test_nothing_leaves_the_axis(value: float) -> None:
    chart = svg(charts.speed_bar(measured(value, baseline_mean=value, baseline_bound=value), 60.0))
    shares = [
        float(element.attributes[name].rstrip("%"))
        for element in chart.inside()
        for name in ("x", "x1", "cx", "width")
        if name in element.attributes
    ]
    assert all(0 <= share <= 100 for share in shares)


def test_a_regression_and_a_void_measurement_look_different() -> None:
    slow = svg(charts.speed_bar(measured(30.0, verdict_state="regression"), 60.0))
    void = svg(charts.speed_bar(measured(30.0, void="throttled"), 60.0))
    assert slow.all("rect", css="regression")
    assert void.all("rect", css="void")


def test_an_accept_length_of_one_is_an_empty_bar() -> None:
    assert svg(charts.accept_bar(1.0, 1.5, 4.0)).one("rect").attributes["width"] == "0%"


def test_an_accept_length_below_its_floor_is_marked() -> None:
    assert svg(charts.accept_bar(1.2, 1.5, 4.0)).all("rect", css="regression")
    assert not svg(charts.accept_bar(1.6, 1.5, 4.0)).all("rect", css="regression")


def test_phases_follow_one_another_and_the_unfinished_one_is_where_it_died() -> None:
    spans = (PhaseSpan("weight_load", 0.0, 4.0), PhaseSpan("kv_pool", 4.0, None))
    chart = svg(charts.startup_bar(LaunchRecord(("x",), "failed", 10.0, spans), 20.0))
    first, second = chart.all("rect")
    assert (first.attributes["x"], first.attributes["width"], first.attributes["class"]) == (
        "0%",
        "20%",
        "p-weight_load",
    )
    assert (second.attributes["x"], second.attributes["width"], second.attributes["class"]) == ("20%", "30%", "died")
    assert chart.one("title").text == "failed after 10.0 s"


def test_a_phase_lasts_until_the_next_one_so_that_the_bar_has_no_gaps() -> None:
    spans = (
        PhaseSpan("dist_init", 2.0, 2.0),
        PhaseSpan("weight_load", 5.0, 6.0),
        PhaseSpan("kv_pool", 7.0, 7.0),
        PhaseSpan("kv_pool", 7.5, 7.5),
        PhaseSpan("ready", 9.0, None),
    )
    launch = LaunchRecord(("x",), "ready", 10.0, spans)
    found = [(span.name, seconds) for span, seconds, _ in charts.phases(launch)]
    assert found == [("start", 2.0), ("dist_init", 3.0), ("weight_load", 2.0), ("kv_pool", 2.0), ("ready", 1.0)]
    parts = svg(charts.startup_bar(launch, 10.0)).all("rect")
    ends = [sum(float(part.attributes[name].rstrip("%")) for name in ("x", "width")) for part in parts]
    assert [float(part.attributes["x"].rstrip("%")) for part in parts] == [0.0, *ends[:-1]]
    assert ends[-1] == 100.0


def test_the_seconds_of_the_phases_add_up_to_those_of_a_failed_launch() -> None:
    spans = (PhaseSpan("weight_load", 1.0, 4.0), PhaseSpan("capture_target_verify", 6.0, None))
    launch = LaunchRecord(("x",), "failed", 10.0, spans, diagnosis={"phase": "capture_target_verify"})
    assert sum(seconds for _, seconds, _ in charts.phases(launch)) == 10.0
    assert [span.name for span, _, died in charts.phases(launch) if died] == ["capture_target_verify"]


def test_a_launch_whose_phases_are_unknown_still_has_its_seconds() -> None:
    chart = svg(charts.startup_bar(LaunchRecord(("x",), "ready", 5.0), 10.0))
    assert chart.one("rect").attributes["width"] == "50%"


def test_an_axis_without_values_has_a_length() -> None:
    assert charts.scale_of([]) > 0
    assert charts.scale_of([None, 0.0]) > 0


def test_the_same_figures_give_the_same_bytes() -> None:
    assert charts.speed_bar(measured(30.0), 60.0) == charts.speed_bar(measured(30.0), 60.0)


def test_a_failing_phase_that_logged_nothing_has_the_time_after_the_last_one() -> None:
    launch = LaunchRecord(("x",), "failed", 10.0, (PhaseSpan("weight_load", 0.0, 4.0),), diagnosis={"phase": "kv_pool"})
    assert charts.phases(launch)[-1] == (PhaseSpan("kv_pool", 4.0, None), 6.0, True)
