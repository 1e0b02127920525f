"""The page: complete, self-contained, readable by people and by machines, whatever a server wrote."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest

from mtpgate.errors import InfrastructureFault, UsageError
from mtpgate.report import page as page_module
from mtpgate.report.outcome import STATES
from mtpgate.report.page import page, render
from mtpgate.report.run import load_run
from mtpgate.report.store import Store
from mtpgate.report.text import MINUS
from suites.harness.report import examples
from suites.harness.report.document import Element, parse
from suites.harness.report.examples import EAGLE, HOSTILE, REFERENCE, Example, write

ALL = {name: value for name, value in vars(examples).items() if isinstance(value, Example)} | {
    "many": examples.many(60, 50),
    "none": Example(cells=()),
}


def html_of(tmp_path: Path, example: Example) -> str:
    return render(write(tmp_path / "out", example)).read_text()


def shown(tmp_path: Path, example: Example) -> Element:
    return parse(html_of(tmp_path, example))


def row_of(document: Element, cell: str) -> Element:
    matrix = document.all("table", css="matrix")
    rows = [row for table in matrix for row in table.all("tr") if row.children and cell in row.text]
    assert len(rows) == 1
    return rows[0]


@pytest.fixture(scope="module", params=sorted(ALL))
def any_page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return html_of(tmp_path_factory.mktemp("page"), ALL[request.param])


def test_the_page_is_well_formed_and_loads_nothing(any_page: str) -> None:
    document = parse(any_page)
    assert not document.all("script") + document.all("link") + document.all("img") + document.all("iframe")
    assert "default-src 'none'" in any_page
    assert "@import" not in any_page
    assert "url(" not in any_page
    assert not [name for element in document.inside() for name in element.attributes if name.startswith("on")]
    for use in document.all("use"):
        assert use.attributes["href"].startswith("#")


def test_headings_descend_one_level_at_a_time(any_page: str) -> None:
    levels = [int(element.tag[1]) for element in parse(any_page).inside() if re.fullmatch(r"h[1-6]", element.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_ids_are_unique_and_links_within_the_page_have_a_target(any_page: str) -> None:
    document = parse(any_page)
    ids = [element.attributes["id"] for element in document.inside() if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    targets = [element.attributes["href"] for element in document.inside() if "href" in element.attributes]
    assert {target[1:] for target in targets if target.startswith("#")} <= set(ids)
    labels = [
        element.attributes["aria-labelledby"]
        for element in document.inside()
        if "aria-labelledby" in element.attributes
    ]
    assert set(labels) <= set(ids)


def test_each_header_cell_says_what_it_heads_and_each_chart_has_a_name(any_page: str) -> None:
    document = parse(any_page)
    assert all(cell.attributes.get("scope") in ("row", "col") for cell in document.all("th"))
    for chart in document.all("svg", role="img"):
        assert isinstance(chart.children[0], Element)
        assert chart.children[0].tag == "title"
        assert chart.children[0].text


def test_the_verdict_is_the_first_thing_after_the_run_s_name(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.SLOWER)
    verdict = document.one("div", css="verdict")
    assert "red" in verdict.attributes["class"].split()
    assert verdict.text.startswith("RED: 1 of 4 cells failed: eagle-s3-k1-d4 throughput C1 is 31.0 % below")
    assert "Next:" in verdict.text
    assert document.one("head").one("title").text.startswith("RED: cpu-small, SGLang 0.5.23")


@pytest.mark.parametrize(
    ("example", "word"),
    [
        (examples.GREEN, "GREEN:"),
        (examples.KNOWN_BAD, "GREEN:"),
        (examples.FIXED, "RED:"),
        (examples.BROKEN, "BROKEN:"),
        (examples.NO_BASELINE, "NOT JUDGED:"),
        (examples.CUT, "CUT SHORT: 9 of 23 checks reported"),
        (examples.LOST, "CUT SHORT:"),
        (Example(cells=()), "NOTHING RAN:"),
    ],
)
def test_each_kind_of_night_has_its_word(tmp_path: Path, example: Example, word: str) -> None:
    verdict = shown(tmp_path, example).one("div", css="verdict")
    assert verdict.text.startswith(word)
    assert ("green" in verdict.attributes["class"].split()) == word.startswith("GREEN")


def test_states_are_told_apart_by_word_and_shape_and_failures_come_first(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.OOM_AND_MORE)
    matrix = document.one("table", css="matrix")
    first = [row.one("th").text for row in matrix.all("tr")[1:]]
    assert first[:3] == [EAGLE[0], EAGLE[2], EAGLE[1]]
    cells = row_of(document, EAGLE[0]).all("td")
    assert [cell.text for cell in cells[:5]] == ["failed", "blocked", "blocked", "blocked", "blocked"]
    assert [cell.one("use").attributes["href"] for cell in cells[:2]] == ["#i-failed", "#i-blocked"]
    assert cells[0].attributes["class"] == "s-failed"


def test_each_state_has_a_shape_of_its_own() -> None:
    sprite = (Path(page_module.__file__).with_name("templates") / "sprite.svg.j2").read_text()
    symbols = dict(re.findall(r'<symbol id="i-(\w+)"[^>]*>(.*)</symbol>', sprite))
    assert set(symbols) == set(STATES)
    assert len(set(symbols.values())) == len(STATES)


def test_a_check_that_was_not_asked_is_not_shown_as_passed(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.GREEN)
    assert row_of(document, REFERENCE).all("td")[1].text == "not asked"


def test_a_failed_start_up_shows_diagnosis_evidence_and_how_to_see_it_again(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.OOM_AND_MORE)
    failure = document.all("article", css="failure")[0]
    for expected in (
        "capture_target_verify",
        "oom_graph_capture",
        "TP2",
        "exit code 1",
        "lower mem_fraction_static: at most 0.645",
        "lower cuda_graph_max_bs to 16",
        "raise mem_fraction_static: that leaves less room for graphs",
        "pytest -m startup --cell eagle-s1-k1-d2 --matrix=matrices/cpu-small.yaml",
        "python -m sglang.launch_server --model-path 'models/small mtp'",
    ):
        assert expected in failure.text, expected
    lines = failure.one("ol", css="lines").all("li")
    assert lines[1].text.startswith("231 torch.OutOfMemoryError")


def test_the_server_s_log_is_linked_relatively_and_its_end_is_inside(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.SLOWER)
    failure = document.one("article", css="failure")
    link = failure.one("a").attributes["href"]
    assert (tmp_path / "out" / unquote(link)).is_file()
    assert not link.startswith("/")
    tail = failure.one("details")
    assert "Its last 40 lines" in tail.one("summary").text
    assert "01:01:29 TP1" in tail.one("pre").text


def test_speed_is_shown_with_its_baseline_for_each_cell_and_concurrency(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.SLOWER)
    speed = next(section for section in document.all("section") if section.attributes["aria-labelledby"] == "speed")
    tables = speed.all("table", css="bars")
    assert [len(table.all("tr")) - 1 for table in tables] == [4, 4]
    slow = next(row for row in tables[0].all("tr") if EAGLE[1] in row.text)
    assert f"{MINUS}31.0 % slower" in slow.text
    chart = slow.one("svg")
    assert chart.one("title").text == "23.6 tokens/s at C1, baseline 34.2, slowest that passes 32.5"
    assert chart.one("line", css="base").attributes["x1"] > chart.one("rect").attributes["width"]


def test_whether_mtp_pays_is_said_for_each_workload(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.SLOWER)
    pays = next(section for section in document.all("section") if section.attributes["aria-labelledby"] == "payoff")
    assert "C1: MTP pays; eagle-s3-k2-d6 at 31.6 tok/s is 1.49x (" in pays.text


def test_missing_baselines_are_said_loudly_beside_another_verdict(tmp_path: Path) -> None:
    example = Example(has_baselines=False, outcomes=examples.PARITY.outcomes)
    document = shown(tmp_path, example)
    assert document.one("div", css="verdict").text.startswith("RED:")
    assert "No baseline: 4 of 4 cells" in document.one("div", css="alarm").text


def test_start_up_is_shown_phase_by_phase_with_the_one_that_failed(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.OOM_AND_MORE)
    startup = next(section for section in document.all("section") if section.attributes["aria-labelledby"] == "startup")
    died = next(row for row in startup.all("tr") if EAGLE[0] in row.text)
    assert "weight_load 8.2 s" in died.text
    assert "capture_target_verify 14.2 s, failed here" in died.text
    assert len(died.one("svg", css="c").all("rect", css="died")) == 1


def test_accept_lengths_pruned_points_and_the_environment_are_shown(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.GREEN)
    sections = {section.attributes["aria-labelledby"]: section.text for section in document.all("section")}
    assert "eagle-s3-k1-d4 2.63" in sections["acceptance"]
    assert "num_steps + 1. Same launch as eagle-s3-k1-d4" in sections["pruned"]
    assert "Hardware CPU, 2 cores" in sections["environment"]
    assert "Suite 4f1c2ab" in sections["environment"]


def test_a_known_bad_check_is_shown_with_its_reason_issue_and_end(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.KNOWN_BAD)
    known = next(section for section in document.all("section") if section.attributes["aria-labelledby"] == "known-bad")
    assert "there is no room for the verify graphs" in known.text
    assert "2026-06-01" in known.text
    assert known.one("a").attributes["href"] == "https://example.org/issues/12"
    assert not document.all("article", css="failure")


def test_what_follows_from_a_known_bad_start_up_is_named_with_it(tmp_path: Path) -> None:
    blocked = {
        (EAGLE[0], name): examples.check(EAGLE[0], name, "known_bad", "known bad: too big\nit died")
        for name in examples.ASKED
    }
    document = shown(tmp_path, Example(waivers={EAGLE[0]: (examples.WAIVER,)}, outcomes=blocked))
    known = next(section for section in document.all("section") if section.attributes["aria-labelledby"] == "known-bad")
    assert len(known.all("tr")) == 2
    assert "it died Not asked because of that: parity, acceptance, throughput, serving." in known.text


def test_a_run_that_was_cut_says_how_far_each_cell_came(tmp_path: Path) -> None:
    document = shown(tmp_path, examples.CUT)
    section = next(part for part in document.all("section") if part.attributes["aria-labelledby"] == "unreported")
    assert f"{EAGLE[2]} startup, parity, acceptance, throughput, serving Not launched." in section.text
    assert "CUT SHORT" in document.one("head").one("title").text


def test_a_server_that_was_starting_when_the_run_was_cut_has_its_log_linked(tmp_path: Path) -> None:
    document = shown(tmp_path, Example(reported=5))
    section = next(part for part in document.all("section") if part.attributes["aria-labelledby"] == "unreported")
    assert "Its server was starting: server log" in section.text


def test_hostile_text_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    html = html_of(tmp_path, examples.HOSTILE_STRINGS)
    document = parse(html)
    assert not document.all("script") + document.all("img")
    assert "<script>alert(1)</script>" in document.one("div", css="verdict").text
    assert "{{ 7*7 }}" in document.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", html)
    hrefs = [element.attributes["href"] for element in document.inside() if "href" in element.attributes]
    assert not [href for href in hrefs if "javascript" in href]
    logs = [href for href in hrefs if href.endswith("server.log")]
    assert all((tmp_path / "out" / unquote(href)).is_file() for href in logs)
    assert logs


def test_an_issue_that_is_no_web_address_is_no_link(tmp_path: Path) -> None:
    waivers = examples.HOSTILE_STRINGS.waivers[REFERENCE]
    excused = Example(
        waivers={REFERENCE: waivers}, outcomes=examples.outcome(REFERENCE, "startup", "known_bad", HOSTILE)
    )
    document = shown(tmp_path, excused)
    known = next(section for section in document.all("section") if section.attributes["aria-labelledby"] == "known-bad")
    assert "(javascript:alert(1))" in known.text
    assert not known.all("a")


def test_long_messages_are_bounded_and_say_so(tmp_path: Path) -> None:
    long = Example(outcomes=examples.outcome(EAGLE[0], "parity", "failed", "x" * 100_000))
    html = html_of(tmp_path, long)
    assert "more characters" in html
    assert len(html) < 120_000


def test_four_hundred_cells_make_a_page_that_is_small_and_quick(tmp_path: Path) -> None:
    root = write(tmp_path / "out", examples.many(400, 60))
    begun = time.perf_counter()
    path = render(root)
    seconds = time.perf_counter() - begun
    document = parse(path.read_text())
    assert path.stat().st_size < 5_000_000
    assert seconds < 20
    assert len(document.all("article", css="failure")) == page_module.FULL_FAILURES
    assert "20 more cells that failed" in document.text
    attention, quiet = document.all("table", css="matrix")
    assert (len(attention.all("tr")) - 1, len(quiet.all("tr")) - 1) == (60, 340)
    folded = [details for details in document.all("details", css="fold") if quiet in details.inside()]
    assert folded
    assert "open" not in folded[0].attributes


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    run = load_run(write(tmp_path / "out", examples.OOM_AND_MORE))
    assert page(run) == page(run)


def test_a_page_that_is_made_during_the_run_says_that_it_is_in_progress(tmp_path: Path) -> None:
    root = write(tmp_path / "out", examples.CUT)
    claimed = Store(root).claim()
    document = parse(render(root).read_text())
    os.close(claimed)
    verdict = document.one("div", css="verdict")
    assert verdict.text.startswith("IN PROGRESS: 9 of 23 checks reported so far. Next: Wait for its end")
    assert "pytest" not in verdict.text
    assert "Finished not yet: the run is in progress" in document.text


def test_a_failure_during_the_run_is_red_already(tmp_path: Path) -> None:
    cut = Example(reported=9, outcomes=examples.outcome(REFERENCE, "serving", "failed", "it hung"))
    root = write(tmp_path / "out", cut)
    claimed = Store(root).claim()
    verdict = parse(render(root).read_text()).one("div", css="verdict").text
    os.close(claimed)
    assert verdict.startswith("RED: ")
    assert "The run is in progress: 9 of 23 checks reported so far." in verdict
    assert "cut short" not in verdict


def test_acceptance_that_was_not_asked_has_no_section(tmp_path: Path) -> None:
    root = write(tmp_path / "out", Example(cells=(REFERENCE,), reported=1))
    (root / "expected.json").unlink()
    document = parse(render(root).read_text())
    assert not document.all("h2", id="acceptance")
    assert "#acceptance" not in [link.attributes.get("href") for link in document.all("a")]


def test_the_seconds_of_a_start_up_are_those_of_the_launch(tmp_path: Path) -> None:
    quick = {(REFERENCE, "startup"): replace(examples.check(REFERENCE, "startup"), seconds=0.001)}
    details = shown(tmp_path, Example(outcomes=quick)).one("details", id="e-cell-0").text
    assert "launch ready after 19.8 s" in details
    assert "0.0 s" not in details


def test_a_store_that_could_not_be_read_wholly_is_said(tmp_path: Path) -> None:
    root = write(tmp_path / "out", examples.GREEN)
    with (root / "checks.jsonl").open("a") as file:
        file.write('{"torn')
    assert "checks.jsonl: 1 line(s)" in parse(render(root).read_text()).one("div", css="alarm").text


def test_rendering_without_a_run_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        render(tmp_path)


def test_a_page_that_cannot_be_written_is_one_clear_fault_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "out", examples.GREEN)
    path = render(root)
    before = path.read_text()

    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InfrastructureFault, match="No space left on device"):
        render(root)
    assert path.read_text() == before
    assert not list(root.glob(".index*"))


PAIRS = [
    *[(colour, f"{colour}-soft") for colour in ("red", "amber", "green", "violet", "blue")],
    *[(colour, "page") for colour in ("text", "muted", "link", "red", "amber", "green", "violet")],
    *[(colour, "card") for colour in ("text", "muted", "link", "red", "amber")],
    *[("text", f"{colour}-soft") for colour in ("red", "amber", "green", "violet")],
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("ink", "paper"), PAIRS)
def test_text_stands_out_from_its_background(scheme: str, ink: str, paper: str) -> None:
    colours = palette(scheme)
    # WCAG 2.2, success criterion 1.4.3 (AA): 4.5 to 1 for text of ordinary size.
    assert contrast(colours[ink], colours[paper]) >= 4.5


@cache
def palette(scheme: str) -> dict[str, str]:
    css = (Path(page_module.__file__).with_name("templates") / "style.css.j2").read_text()
    light, dark = css.split("@media (prefers-color-scheme: dark)", 1)
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light if scheme == "light" else dark))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_counts_show_each_outcome_with_its_own_shape(tmp_path: Path) -> None:
    counts = shown(tmp_path, examples.OOM_AND_MORE).one("ul", css="counts").all("li")
    assert [count.text for count in counts] == ["3 failed", "5 blocked", "15 passed", "23 of 23 checks reported"]
    shapes = [count.one("use").attributes["href"] for count in counts[:3]]
    assert shapes == ["#i-failed", "#i-blocked", "#i-passed"]
