"""What Allure reads beside the test results and pytest does not write: environment, categories, executor, metrics.

The rules of :data:`CATEGORIES` are for Allure 2, which matches by status, message and trace; ``reports/allurerc.mjs``
has the same categories, by label, for Allure 3.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from mtpgate.errors import InfrastructureFault
from mtpgate.report.run import Run
from mtpgate.report.text import clean, epoch_ms

CATEGORIES: tuple[Mapping[str, object], ...] = (
    {"name": "Fixed: remove the waiver", "matchedStatuses": ["failed"], "messageRegex": r"(?s).*\bfixed: .*"},
    {"name": "Known bad", "matchedStatuses": ["skipped"], "messageRegex": r"(?s).*known bad: .*"},
    {"name": "No baseline", "matchedStatuses": ["skipped"], "messageRegex": r"(?s).*no baseline.*"},
    {"name": "Unstable speed", "matchedStatuses": ["skipped"], "messageRegex": r"(?s).*: unstable: .*"},
    {"name": "Too little data to judge", "matchedStatuses": ["skipped"], "messageRegex": r"(?s).*insufficient.*"},
    {"name": "Void measurement", "matchedStatuses": ["failed", "broken"], "messageRegex": r"(?s).*\bvoid\b.*"},
    {
        "name": "Start-up: out of memory",
        "matchedStatuses": ["failed"],
        "messageRegex": r"(?s).*(out of memory|not enough memory|oom_|kv_pool_small).*",
    },
    {"name": "Start-up", "matchedStatuses": ["failed"], "traceRegex": r"(?s).*test_startup.*"},
    {"name": "Answers differ", "matchedStatuses": ["failed"], "traceRegex": r"(?s).*test_parity.*"},
    {"name": "Accept length", "matchedStatuses": ["failed"], "traceRegex": r"(?s).*test_acceptance.*"},
    {"name": "Slower than the baseline", "matchedStatuses": ["failed"], "traceRegex": r"(?s).*test_throughput.*"},
    {"name": "Serving", "matchedStatuses": ["failed"], "traceRegex": r"(?s).*test_serving.*"},
    {"name": "Blocked by a failed start-up", "matchedStatuses": ["broken"], "messageRegex": r"(?s).*Blocked.*"},
    {"name": "Infrastructure", "matchedStatuses": ["broken"]},
)
"""First match wins in Allure 3; Allure 2 shows a test under each category that matches."""


def write_results_data(results: Path, run: Run, environ: Mapping[str, str] = os.environ) -> None:
    """Write all four files into ``results``; ``executor.json`` only where ``environ`` tells of a CI job.

    Raises :class:`InfrastructureFault` if the folder cannot be written.
    """
    write_environment(results, run)
    write_categories(results)
    write_executor(results, environ)
    write_metrics(results, run)


def write_environment(results: Path, run: Run) -> None:
    """``environment.properties``: what the run ran on."""
    info = run.info
    entries = {
        "Matrix": info.matrix_name,
        "SGLang": info.sglang_version,
        "Hardware": info.hardware,
        "Host": info.host,
        "Platform": info.platform,
        "Python": info.python,
        "Suite": info.suite_revision or "",
        "Command": info.command_line,
        "Cells": str(len(info.cells)),
    }
    text = "".join(f"{key}={_property(value)}\n" for key, value in entries.items() if value)
    _write(results / "environment.properties", text)


def write_categories(results: Path) -> None:
    """``categories.json`` for Allure 2."""
    _write(results / "categories.json", json.dumps(CATEGORIES, indent=1) + "\n")


def write_executor(results: Path, environ: Mapping[str, str]) -> None:
    """``executor.json``: which CI job this was. Nothing is written outside GitHub Actions, GitLab and Jenkins."""
    executor = executor_of(environ)
    if executor is not None:
        _write(results / "executor.json", json.dumps(executor, indent=1) + "\n")


def executor_of(environ: Mapping[str, str]) -> dict[str, object] | None:
    """The CI job that ``environ`` tells of, in Allure's words, or None."""
    if environ.get("GITHUB_ACTIONS") == "true":
        repository = f"{environ.get('GITHUB_SERVER_URL', '')}/{environ.get('GITHUB_REPOSITORY', '')}"
        url = f"{repository}/actions/runs/{environ.get('GITHUB_RUN_ID', '')}"
        return _executor(
            "github", "GitHub Actions", environ.get("GITHUB_WORKFLOW"), environ.get("GITHUB_RUN_NUMBER"), url
        )
    if environ.get("GITLAB_CI"):
        return _executor(
            "gitlab", "GitLab CI", environ.get("CI_JOB_NAME"), environ.get("CI_PIPELINE_IID"), environ.get("CI_JOB_URL")
        )
    if environ.get("JENKINS_URL"):
        return _executor(
            "jenkins", "Jenkins", environ.get("JOB_NAME"), environ.get("BUILD_NUMBER"), environ.get("BUILD_URL")
        )
    return None


def write_metrics(results: Path, run: Run) -> None:
    """``mtpgate-perf.json``: tokens/s, accept length and start-up seconds of each cell, for Allure 3's metrics page.

    A key is ``<figure>.<cell>``; void measurements are left out, so that a trend holds only what counts.
    """
    values: dict[str, float] = {}
    for cell in run.cells:
        if cell.launch is not None and cell.launch.state == "ready":
            values[f"startup_seconds.{cell.id}"] = cell.launch.startup_seconds
        for record in cell.measurements:
            if record.void is None:
                values[f"tokens_per_second.{record.workload}.{cell.id}"] = record.output_tokens_per_second
                if record.accept_length is not None:
                    values[f"accept_length.{record.workload}.{cell.id}"] = record.accept_length
    start = epoch_ms(run.info.started)
    stop = epoch_ms(run.finished.finished) if run.finished else start
    samples = [
        {"id": f"{run.info.started}/{key}", "key": key, "value": round(value, 4), "start": start, "stop": stop}
        for key, value in values.items()
    ]
    _write(results / "mtpgate-perf.json", json.dumps(samples, indent=1) + "\n")


def _executor(kind: str, name: str, job: str | None, number: str | None, url: str | None) -> dict[str, object]:
    executor: dict[str, object] = {"type": kind, "name": name, "buildName": f"{job or name} #{number or '?'}"}
    if number and number.isdecimal():
        executor["buildOrder"] = int(number)
    return {**executor, "buildUrl": url} if url else executor


def _property(value: str) -> str:
    """A value of a Java properties file: one line, backslashes and what is not ASCII escaped."""
    text = clean(value).replace("\\", "\\\\").replace("\n", " ")
    return "".join(char if " " <= char <= "~" else _unicode_escape(char) for char in text)


def _unicode_escape(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise InfrastructureFault(f"Allure's data cannot be written: {path}: {error.strerror or error}.") from error
