"""The page says where each launch's memory went, what was forecast, what to change and what was tried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mtpgate.report.page import render
from mtpgate.report.records import FitAttempt
from mtpgate.report.store import plain
from suites.harness.report import budgets, examples
from suites.harness.report.document import Element, parse
from suites.harness.report.examples import EAGLE, REFERENCE, Example, write


def shown(tmp_path: Path, example: Example) -> Element:
    return parse(render(write(tmp_path / "out", example)).read_text())


def section(document: Element, name: str) -> Element:
    return next(part for part in document.all("section") if part.attributes["aria-labelledby"] == name)


def rows(table: Element) -> list[list[str]]:
    return [[cell.text for cell in row.inside() if cell.tag in ("th", "td")] for row in table.all("tr")]


def failure(tmp_path: Path, **changes: object) -> Element:
    launch = {**examples.MEMORY_OOM.launches[EAGLE[0]], **changes}
    launches = {**examples.MEMORY_OOM.launches, EAGLE[0]: launch}
    return shown(tmp_path, replace(examples.MEMORY_OOM, launches=launches)).one("article", css="failure")


def test_every_launch_has_its_memory_and_a_failed_one_with_its_failure(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.MEMORY_OOM)
    memory = section(document, "memory")
    assert [heading.text for heading in memory.all("h3")] == [EAGLE[0], REFERENCE, EAGLE[1], EAGLE[2]]
    assert len(memory.all("table", css="memory")) == 3
    assert len(document.one("article", css="failure").all("table", css="memory")) == 1
    assert "its memory is with the failure" in memory.text
    assert "Memory" in document.one("nav").text


def test_the_table_has_the_picture_s_figures_in_gib_and_the_kv_tokens(tmp_path: Path) -> None:
    card = failure(tmp_path, forecast=None)
    head, others, failed = rows(card.one("table", css="figures"))
    assert head == [
        "GiB",
        "available before load",
        "weights",
        "draft weights",
        "KV pool",
        "verify graphs (unfinished)",
        "other",
        "left",
        "wanted",
        "KV tokens",
    ]
    assert others[0] == "TP0, TP2, TP3"
    assert failed == ["TP1", "94.21", "43.62", "1.83", "20.45", "25.98", "0.03", "2.30", "7.50", "2,970,624"]


def test_each_bar_says_its_figures_to_a_screen_reader(tmp_path: Path) -> None:
    titles = [chart.one("title").text for chart in failure(tmp_path).one("table", css="memory").all("svg")]
    assert titles[1] == (
        "TP1, 94.21 GiB: weights 43.62, draft weights 1.83, KV pool 20.45, verify graphs (unfinished) 25.98, "
        "other 0.03, left 2.30, wanted 7.50, memory fraction 0.70 at 65.95"
    )


def test_the_words_are_the_sums_of_the_figures(tmp_path: Path) -> None:
    card = failure(tmp_path)
    assert (
        "The memory fraction 0.70 of 94.21 GiB is 65.95 GiB (thick line); weights, draft weights and KV pool take "
        "65.90 GiB. 2,970,624 KV tokens." in card.text
    )
    assert "TP1 asked for 7.50 GiB with 2.30 GiB free: 5.20 GiB too few." in card.text
    uneven = section(shown(tmp_path / "b", examples.MEMORY_OOM), "memory").text
    assert "weights, KV pool and draft KV pool take 54.70 GiB. This SGLang does not count the draft's" in uneven


def test_predicted_stands_beside_measured_segment_by_segment(tmp_path: Path) -> None:
    memory = section(shown(tmp_path, examples.MEMORY_OOM), "memory")
    head, predicted, measured = rows(memory.all("table", css="figures")[1])
    assert (predicted[0], measured[0]) == ("predicted", "TP0 to TP3, measured")
    at = {name: index for index, name in enumerate(head)}
    assert (predicted[at["KV pool"]], measured[at["KV pool"]]) == ("20.50", "10.40")
    assert (predicted[at["verify graphs"]], measured[at["verify graphs"]]) == ("30.10", "21.40")
    assert (predicted[at["left"]], measured[at["left"]]) == ("\u22121.84", "11.90")
    assert predicted[at["draft graphs"]] == "\u2013"


@pytest.mark.parametrize(
    ("fits", "state", "came"),
    [
        (True, "ready", "It came so."),
        (False, "failed", "It came so."),
        (False, "ready", "It came otherwise: the server started."),
        (True, "failed", "It came otherwise: memory ran out."),
    ],
)
def test_a_forecast_is_held_against_what_came(tmp_path: Path, fits: bool, state: str, came: str) -> None:
    cell = EAGLE[0] if state == "failed" else EAGLE[1]
    launches = {cell: {"budget": plain(budgets.CPU), "forecast": {"from_cell": "no-mtp", "fits": fits, "text": "Hm."}}}
    example = Example(launches=launches, died={EAGLE[0]: examples.OOM})
    assert f"Forecast from no-mtp: Hm. {came}" in shown(tmp_path, example).text


def test_a_failure_of_another_kind_says_nothing_of_the_forecast(tmp_path: Path) -> None:
    forecast = {"from_cell": "no-mtp", "fits": True, "left_gib": 3.25, "text": ""}
    example = Example(
        died={EAGLE[0]: {**examples.OOM, "kind": "nan_logits"}}, launches={EAGLE[0]: {"forecast": forecast}}
    )
    text = shown(tmp_path, example).text
    assert "Forecast from no-mtp: it fits, with 3.25 GiB left." in text
    assert "It came" not in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("by no-mtp: does not fit", "Forecast by no-mtp: does not fit. It came otherwise"),
        ("it fits.", "Forecast from no-mtp: it fits. It came otherwise"),
    ],
)
def test_a_forecast_names_its_cell_once(tmp_path: Path, text: str, said: str) -> None:
    forecast = {"from_cell": "no-mtp", "fits": False, "text": text}
    assert said in shown(tmp_path, Example(launches={EAGLE[0]: {"forecast": forecast}})).text


def test_memory_of_the_cpu_engine_is_called_the_host_s(tmp_path: Path) -> None:
    memory = section(shown(tmp_path, examples.MEMORY_CPU), "memory")
    assert "This is the host's memory, which other processes use too." in memory.text
    assert "weights and KV pool take 0.50 GiB. 16,384 KV tokens." in memory.text
    assert rows(memory.all("table", css="figures")[0])[1] == [
        "host",
        "21.85",
        "0.32",
        "0.18",
        "0.04",
        "21.31",
        "16,384",
    ]
    assert "graphs" not in memory.text


def test_without_any_budget_there_is_no_section(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.OOM_AND_MORE)
    assert not document.all("h2", id="memory")
    assert "Where the memory went" not in document.text
    assert not document.all("table", css="memory")


def test_what_to_change_is_said_in_sentences_with_its_figures(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.MEMORY_OOM)
    card = document.one("article", css="failure")
    assert "What to change Lower --mem-fraction-static to 0.60" in card.text
    assert "Or keep 0.70 and lower --cuda-graph-max-bs-decode to 16" in card.text
    assert "Largest fraction 0.645 Suggested mem_fraction_static 0.60, within the bound by 4.2 GiB" in card.text
    assert "KV tokens 1,609,000 at the suggestion, 1,361,624 fewer than now" in card.text
    assert "Graph batch limit 16 alone should do" in card.text
    assert "What would not help raise mem_fraction_static" in card.text
    assert "Next: Lower --mem-fraction-static to 0.60" in document.one("div", css="verdict").text


def test_what_was_tried_is_advice_and_no_pass(tmp_path: Path) -> None:
    card = failure(tmp_path)
    assert rows(card.one("table", css="tried"))[1:] == [
        ["cuda_graph_max_bs = 16", "failed", "61.2", "\u2013", "Out of memory at verify graphs, batch 16."],
        ["mem_fraction_static = 0.60", "started", "83.4", "11.90", "Ready."],
    ]
    assert "What fits (advice, not a pass): mem_fraction_static = 0.60" in card.text
    assert "the cell as it was asked still fails" in card.text


def test_a_fit_does_not_change_the_verdict(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.MEMORY_OOM)
    assert document.one("div", css="verdict").text.startswith("RED: 1 of 4 cells failed")


def test_where_nothing_fits_that_is_said(tmp_path: Path) -> None:
    card = failure(tmp_path, fits=(FitAttempt({"mem_fraction_static": 0.55}, "failed", 60.0),))
    assert "What fits: none of these." in card.text


def test_lines_that_no_format_knows_are_a_note_of_healthy_launches_too(tmp_path: Path) -> None:
    launches = {EAGLE[0]: {"unmatched": ("Reserving graph workspace of 512 MB",)}}
    memory = section(shown(tmp_path, Example(launches=launches)), "memory")
    note = memory.one("details", css="unmatched")
    assert note.one("summary").text == "1 line of the start-up that this suite does not know"
    assert "Reserving graph workspace of 512 MB" in note.one("pre").text


def test_lines_of_the_diagnosis_serve_where_the_launch_names_none(tmp_path: Path) -> None:
    lines = [{"line": 7, "text": "Warming stage 2"}]
    example = Example(died={EAGLE[0]: {**examples.OOM, "unmatched": lines}})
    assert "7: Warming stage 2" in shown(tmp_path, example).one("details", css="unmatched").text


def test_hostile_text_of_budgets_forecasts_and_fits_is_shown_as_text(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.MEMORY_HOSTILE)
    assert not document.all("script") + document.all("img")
    memory = section(document, "memory")
    assert "<script>alert(1)</script>" in memory.one("table", css="memory").text
    assert "{{ 7*7 }}" in memory.one("details", css="unmatched").text
    card = document.one("article", css="failure")
    assert "<script>alert(1)</script>" in card.one("table", css="tried").text
    assert "The stored memory budget cannot be read: ranks" in card.text
