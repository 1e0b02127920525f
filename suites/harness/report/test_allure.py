"""What Allure reads beside the results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mtpgate.errors import InfrastructureFault
from mtpgate.report.allure import CATEGORIES, executor_of, write_results_data
from mtpgate.report.run import Run, load_run
from suites.harness.report import examples
from suites.harness.report.examples import EAGLE, write

CONFIG = Path(__file__).parents[3] / "reports" / "allurerc.mjs"
GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "team/gate",
    "GITHUB_RUN_ID": "77",
    "GITHUB_RUN_NUMBER": "12",
    "GITHUB_WORKFLOW": "nightly",
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load_run(write(tmp_path / "out", examples.OOM_AND_MORE))


def test_the_environment_is_a_properties_file_of_one_line_an_entry(tmp_path: Path) -> None:
    texts = {"hardware": "8 x GPU\\PCIe", "host": "bö\nx", "command_line": "pytest\u202e"}
    run = load_run(write(tmp_path / "out", examples.Example(texts=texts)))
    write_results_data(tmp_path / "results", run, {})
    lines = (tmp_path / "results" / "environment.properties").read_text(encoding="ascii").splitlines()
    entries = dict(line.split("=", 1) for line in lines)
    assert entries["SGLang"] == "0.5.23"
    assert entries["Hardware"] == "8 x GPU\\\\PCIe"
    assert entries["Host"] == "b\\u00f6 x"
    assert entries["Command"] == "pytest\\ufffd"


def test_the_executor_is_written_in_ci_only(tmp_path: Path, run: Run) -> None:
    write_results_data(tmp_path / "results", run, {})
    assert not (tmp_path / "results" / "executor.json").exists()
    write_results_data(tmp_path / "results", run, GITHUB)
    executor = json.loads((tmp_path / "results" / "executor.json").read_text())
    assert executor == {
        "type": "github",
        "name": "GitHub Actions",
        "buildName": "nightly #12",
        "buildOrder": 12,
        "buildUrl": "https://github.com/team/gate/actions/runs/77",
    }


def test_other_ci_systems_are_known() -> None:
    gitlab = executor_of({"GITLAB_CI": "1", "CI_JOB_NAME": "gate", "CI_PIPELINE_IID": "4", "CI_JOB_URL": "https://g/4"})
    jenkins = executor_of({"JENKINS_URL": "https://j", "JOB_NAME": "gate", "BUILD_NUMBER": "x"})
    assert gitlab is not None
    assert gitlab["buildUrl"] == "https://g/4"
    assert jenkins == {"type": "jenkins", "name": "Jenkins", "buildName": "gate #x"}


def test_metrics_hold_each_figure_of_each_cell_once(tmp_path: Path, run: Run) -> None:
    write_results_data(tmp_path / "results", run, {})
    samples = json.loads((tmp_path / "results" / "mtpgate-perf.json").read_text())
    values = {sample["key"]: sample["value"] for sample in samples}
    assert len(values) == len(samples)
    assert values[f"tokens_per_second.C1.{EAGLE[1]}"] == 23.6
    assert values[f"accept_length.C16.{EAGLE[1]}"] == 2.63
    assert values[f"startup_seconds.{EAGLE[1]}"] == 31.0
    assert f"startup_seconds.{EAGLE[0]}" not in values
    assert samples[0]["stop"] - samples[0]["start"] == 760_000


@pytest.mark.parametrize(
    ("status", "message", "trace", "name"),
    [
        ("failed", "fixed: the waiver of e3", "", "Fixed: remove the waiver"),
        ("skipped", "XFAIL reason: known bad: too big", "", "Known bad"),
        ("skipped", "Skipped: C1: 23.0 tok/s, no baseline to judge it by", "", "No baseline"),
        ("failed", "AssertionError: void, not judged: throttled", "test_throughput.py", "Void measurement"),
        ("failed", "two lines\nCUDA out of memory", "suites/startup/test_startup.py:3", "Start-up: out of memory"),
        ("failed", "hang in warmup", "suites/startup/test_startup.py:3", "Start-up"),
        ("failed", "2 of 12 differ", "suites/parity/test_parity.py:3", "Answers differ"),
        ("failed", "regression", "suites/throughput/test_throughput.py:3", "Slower than the baseline"),
        ("broken", "fixtures.launches.Blocked: not asked", "", "Blocked by a failed start-up"),
        ("broken", "InfrastructureFault: disk full", "", "Infrastructure"),
    ],
)
def test_each_kind_of_result_has_its_category(
    tmp_path: Path, run: Run, status: str, message: str, trace: str, name: str
) -> None:
    write_results_data(tmp_path / "results", run, {})
    categories = json.loads((tmp_path / "results" / "categories.json").read_text())
    # As Allure 2 does: the whole text must match, dots match newlines only where the rule says so.
    first = next(
        category["name"]
        for category in categories
        if status in category["matchedStatuses"]
        and re.fullmatch(category.get("messageRegex", "(?s).*"), message)
        and re.fullmatch(category.get("traceRegex", "(?s).*"), trace)
    )
    assert first == name


def test_allure_3_has_the_same_categories_in_the_same_order() -> None:
    rules = CONFIG.read_text(encoding="utf-8").split("rules: [", 1)[1]
    names = re.findall(r'(?:failed\(|skipped\(|name: )"([^"]+)"', rules)
    assert names == [category["name"] for category in CATEGORIES]


def test_allure_3_writes_to_what_git_ignores() -> None:
    text = CONFIG.read_text(encoding="utf-8")
    paths = re.findall(r'(?:output|historyPath): "([^"]+)"', text)
    assert len(paths) == 2
    assert all(path.startswith("reports/out/") for path in paths)


def test_results_that_cannot_be_written_are_one_clear_fault(tmp_path: Path, run: Run) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(InfrastructureFault, match=r"Allure's data cannot be written"):
        write_results_data(tmp_path / "results", run, {})
