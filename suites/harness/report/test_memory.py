"""A launch's memory: what is stored becomes bars in proportion and rows; what cannot be read is one sentence."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import pytest

from mtpgate.report.memory import Memory, least_left, memory_of, read_budget
from mtpgate.report.memory_chart import memory_bar
from mtpgate.report.memory_names import segment_class
from mtpgate.report.ranks import ranges
from mtpgate.report.records import LaunchRecord
from mtpgate.report.store import plain
from mtpgate.server.budget import Budget, RankBudget
from suites.harness.report import budgets
from suites.harness.report.document import Element, parse

IN_CAPTURE = {"phase": "capture_target_verify", "kind": "oom_graph_capture"}


def launch(budget: Budget | None, **more: object) -> LaunchRecord:
    record = LaunchRecord(("x",), "ready", 10.0, budget=None if budget is None else plain(budget))
    return replace(record, **more)  # type: ignore[arg-type]


def memory(budget: Budget | None, **more: object) -> Memory:
    found = memory_of(launch(budget, **more))
    assert found is not None
    return found


def failed_capture() -> Memory:
    return memory(budgets.CAPTURE_OOM, state="failed", diagnosis=IN_CAPTURE)


def bar_of(found: Memory, index: int = 0) -> Element:
    return parse(memory_bar(found.bars[index], found.scale, "TP0")).one("svg")


def spans(chart: Element) -> list[tuple[str, float, float]]:
    """Class, begin and length of each part, percent."""
    return [
        (part.attributes["class"], *(float(part.attributes[name].rstrip("%")) for name in ("x", "width")))
        for part in chart.all("rect")
    ]


@pytest.mark.parametrize("budget", [budgets.CAPTURE_OOM, budgets.HEALTHY_EAGLE, budgets.HEALTHY_REFERENCE, budgets.CPU])
def test_the_parts_of_each_rank_add_up_to_what_was_available(budget: Budget) -> None:
    for found in (memory(budget), memory(budget, state="failed", diagnosis=IN_CAPTURE)):
        for item in found.bars:
            assert sum(size for _, size in item.parts) == pytest.approx(item.rank.before_load)


@pytest.mark.parametrize("budget", [budgets.CAPTURE_OOM, budgets.HEALTHY_EAGLE, budgets.CPU_EAGLE])
def test_parts_follow_one_another_and_are_as_long_as_their_figures(budget: Budget) -> None:
    found = memory(budget)
    for index, item in enumerate(found.bars):
        drawn = [part for part in spans(bar_of(found, index)) if part[0] != "wanted"]
        shown = [(name, size) for name, size in item.parts if size >= 0.005]
        assert [css for css, _, _ in drawn] == [segment_class(name) for name, _ in shown]
        for (_, _, length), (_, size) in zip(drawn, shown, strict=True):
            assert length == pytest.approx(100 * size / found.scale, abs=0.01)
        for (_, begin, length), (_, following, _) in itertools.pairwise(drawn):
            assert following == pytest.approx(begin + length, abs=0.02)


def test_the_line_is_the_fraction_of_what_was_available() -> None:
    chart = bar_of(memory(budgets.HEALTHY_EAGLE))
    assert chart.one("line", css="base").attributes["x1"] == "60%"
    assert not chart.all("line", css="edge")


def test_a_failing_request_begins_where_free_memory_does_and_goes_on_beyond_its_end() -> None:
    found = failed_capture()
    index = next(index for index, item in enumerate(found.bars) if item.rank.rank == "TP1")
    chart = bar_of(found, index)
    parts = {css: (begin, length) for css, begin, length in spans(chart)}
    assert found.scale == pytest.approx(94.21 + 7.50 - 2.30)
    assert parts["wanted"][0] == pytest.approx(parts["m-left"][0], abs=0.02)
    assert parts["wanted"][1] == pytest.approx(100 * 7.50 / found.scale, abs=0.01)
    assert sum(parts["wanted"]) == pytest.approx(100, abs=0.02)
    assert float(chart.one("line", css="edge").attributes["x1"].rstrip("%")) == pytest.approx(
        100 * 94.21 / found.scale, abs=0.01
    )


def test_a_request_far_too_large_leaves_the_rest_of_its_bar_readable() -> None:
    rank = RankBudget(None, before_load=90.0, weights=80.0, left=10.0, wanted=5000.0)
    found = memory(Budget(ranks=(rank,)))
    assert found.scale == pytest.approx(120.0)
    assert all(begin + length <= 100 or css == "wanted" for css, begin, length in spans(bar_of(found)))


def test_what_an_unfinished_capture_took_is_told_apart_from_what_is_not_known() -> None:
    parts = dict(next(item for item in failed_capture().bars if item.rank.rank == "TP1").parts)
    assert parts["capture_target_verify (unfinished)"] == pytest.approx(28.28 - 2.30)
    assert parts["other"] == pytest.approx(94.21 - 43.62 - 1.83 - 20.45 - 28.28)


def test_a_launch_that_did_not_fail_in_a_capture_has_no_unfinished_one() -> None:
    assert "capture_target_verify (unfinished)" not in dict(memory(budgets.HEALTHY_EAGLE).bars[0].parts)
    died = memory(budgets.CAPTURE_OOM, state="failed", diagnosis={"phase": "warmup"})
    assert not [name for item in died.bars for name, _ in item.parts if "unfinished" in name]


def test_memory_whose_end_the_log_does_not_tell_is_not_called_other() -> None:
    found = memory(Budget(ranks=(RankBudget(None, before_load=90.0, weights=40.0),)))
    assert found.bars[0].parts == (("weights", 40.0), ("unknown", 50.0))


def test_ranks_that_are_alike_are_one_with_the_figures_of_the_tightest() -> None:
    (item,) = memory(budgets.HEALTHY_EAGLE).figures
    assert item.label("GPU") == "TP0 to TP3"
    assert item.values["left"] == 11.90
    assert [one.label("GPU") for one in failed_capture().figures] == ["TP0, TP2, TP3", "TP1"]


@pytest.mark.parametrize(("difference", "rows"), [(0.05, 1), (0.06, 2)])
def test_ranks_are_alike_within_a_twentieth_of_a_gib(difference: float, rows: int) -> None:
    one = RankBudget("TP0", before_load=90.0, weights=40.0, left=50.0)
    ranks = (one, replace(one, rank="TP1", weights=40.0 + difference))
    assert len(memory(Budget(ranks=ranks)).figures) == rows


def test_a_row_of_ranks_is_never_wider_than_the_tolerance() -> None:
    ranks = tuple(RankBudget(f"TP{number}", before_load=90.0, left=10 + number * 0.04) for number in range(6))
    assert [item.label("") for item in memory(Budget(ranks=ranks)).figures] == ["TP0, TP1", "TP2, TP3", "TP4, TP5"]


def test_a_figure_that_one_rank_lacks_tells_it_from_the_others() -> None:
    ranks = (RankBudget("TP0", before_load=90.0, left=10.0), RankBudget("TP1", before_load=90.0, left=10.0, wanted=0.0))
    assert len(memory(Budget(ranks=ranks)).figures) == 2


def test_names_of_ranks_are_ranges_only_where_they_count_up() -> None:
    assert ranges(["TP0"]) == "TP0"
    assert ranges([f"TP{number}" for number in range(8, 12)]) == "TP8 to TP11"
    assert ranges(["TP0", "TP1", "TP3", "DP1 TP4", "DP1 TP5", "DP1 TP6"]) == "TP0, TP1, TP3, DP1 TP4 to DP1 TP6"


def test_columns_are_what_is_known_or_predicted_and_no_captures_on_a_cpu() -> None:
    assert memory(budgets.CPU).columns == ("before_load", "weights", "kv", "other", "left")
    predicted = memory(budgets.CPU, forecast={"predicted": {"draft_weights": 1.0, "mystery": 2.0}, "left_gib": -1.5})
    assert predicted.columns == ("before_load", "weights", "draft_weights", "kv", "other", "left", "mystery")
    assert predicted.predicted == {"draft_weights": 1.0, "mystery": 2.0, "left": -1.5}


def test_kv_tokens_are_the_server_s_else_those_of_the_rank_with_fewest() -> None:
    assert memory(budgets.CAPTURE_OOM).kv_tokens == 2_970_624
    ranks = tuple(RankBudget(f"TP{count}", before_load=9.0, kv_tokens=count) for count in (7, 5, 6))
    assert memory(Budget(ranks=ranks)).kv_tokens == 5
    other = RankBudget("DP1", before_load=4.0, kv_tokens=6)
    assert memory(Budget(ranks=(other, *ranks))).kv_tokens == 5


@pytest.mark.parametrize("budget", [None, Budget(), Budget(fraction=0.7, ranks=(RankBudget("TP0"),))])
def test_of_a_launch_of_which_nothing_is_known_nothing_is_shown(budget: Budget | None) -> None:
    assert memory_of(launch(budget)) is None


def test_what_only_the_failure_tells_is_a_row_without_a_bar() -> None:
    found = memory(Budget(ranks=(RankBudget("TP0", left=2.3, wanted=7.5, total=94.97),)))
    assert not found.bars
    assert found.figures[0].values == {"left": 2.3, "wanted": 7.5}


def test_the_budget_of_the_diagnosis_serves_where_the_launch_has_none() -> None:
    found = memory(None, state="failed", diagnosis={**IN_CAPTURE, "budget": plain(budgets.CAPTURE_OOM)})
    assert len(found.bars) == 2


def test_a_stored_budget_is_read_back_as_it_was() -> None:
    assert read_budget(plain(budgets.HEALTHY_EAGLE)) == (budgets.HEALTHY_EAGLE, "")


@pytest.mark.parametrize(
    ("stored", "place"),
    [
        ("text", "budget"),
        ({"ranks": "x"}, "ranks"),
        ({"ranks": [{"rank": None, "weights": "much"}]}, "ranks.0.weights"),
    ],
)
def test_a_budget_that_cannot_be_read_is_one_sentence(stored: object, place: str) -> None:
    budget, problem = read_budget(stored)
    assert budget == Budget()
    assert problem.startswith(f"The stored memory budget cannot be read: {place}: ")


@pytest.mark.parametrize(
    "rank",
    [
        {"before_load": 0.0, "left": 0.0},
        {"before_load": -5.0, "weights": -3.0, "left": 1e12, "wanted": -1.0},
        {"before_load": 10.0, "weights": 50.0, "kv": 1e9, "left": 3.0, "wanted": 1e300},
    ],
)
def test_figures_that_make_no_sense_stay_inside_their_bar(rank: Mapping[str, float]) -> None:
    found = memory(Budget(fraction=-3.0, ranks=(RankBudget(None, **rank),)))  # type: ignore[arg-type]
    for index in range(len(found.bars)):
        assert all(0 <= begin <= 100 and 0 <= length <= 100 for _, begin, length in spans(bar_of(found, index)))


def test_the_least_left_of_a_fit_is_that_of_its_tightest_rank() -> None:
    assert least_left(plain(budgets.UNEVEN)) == pytest.approx(10.90)
    assert least_left(None) is None
