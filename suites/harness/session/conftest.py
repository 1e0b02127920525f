"""Runs the suite on itself: pytest in a process of its own, on the stand-in server, with folders of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from mtpgate.report.records import BY_SEVERITY, CheckRecord
from mtpgate.report.run import Run, load_run

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SERVER = ROOT / "suites" / "harness" / "standin" / "server.py"
QUESTIONS = "mtp and not probe"
"""Asked where a test names no markers: probes are a dozen questions of each cell, and have tests of their own."""

TIMEOUT_SECONDS = 240
"""Against a run that hangs; a run takes 3 to 8 s."""


@dataclass(frozen=True)
class Finished:
    """A run of the suite that ended."""

    code: int
    output: str
    out: Path

    @property
    def run(self) -> Run:
        return load_run(self.out)

    def check(self, cell: str, check: str) -> CheckRecord:
        """The one record of a check; the first of the worst where several tests ask it."""
        found = [
            record for row in self.run.cells if row.info.id == cell for record in row.checks if record.check == check
        ]
        assert found, f"no {check} check of {cell} in\n{self.output}"
        return min(found, key=lambda record: BY_SEVERITY.index(record.state))

    def states(self, check: str) -> dict[str, str]:
        return {row.info.id: self.check(row.info.id, check).state for row in self.run.cells}


@dataclass(frozen=True)
class Suite:
    """``pytest -m mtp`` on the stand-in."""

    folder: Path

    def command(self, *arguments: str) -> list[str]:
        server = [
            sys.executable,
            str(SERVER),
            "--model-path",
            "{model}",
            "--host",
            "{host}",
            "--port",
            "{port}",
            "{args}",
        ]
        named = {
            "--matrix": str(HERE / "standin.yaml"),
            "--server-command": " ".join([*server, "{args}"]),
            "--out": str(self.folder / "out"),
            "--baselines": str(self.folder / "baselines"),
            "--known-bad": str(self.waivers([], name="no_waivers.yaml")),
        }
        given = {argument.partition("=")[0] for argument in arguments}
        # With "=": pytest takes a word of its own that is a path for a test's, and looks for pytest.ini there.
        defaults = [f"{name}={value}" for name, value in named.items() if name not in given]
        # These plugins take a second to import, and do nothing for the suites.
        unused = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:anyio"]
        # A second for each load, and the stand-in's speed does not depend on the machine.
        unused += [] if "--canary" in arguments else ["--no-canary"]
        asked = [argument for argument in arguments if argument != "--canary"]
        return [sys.executable, "-m", "pytest", "-m", QUESTIONS, *unused, *defaults, *asked]

    def environment(self, behaviour: dict[str, object] | None = None) -> dict[str, str]:
        # Without bytecode every run would compile pytest's rewritten modules again.
        not_for_it = ("PYTEST_", "MTPGATE_", "PYTHONDONTWRITEBYTECODE")
        plain = {name: value for name, value in os.environ.items() if not name.startswith(not_for_it)}
        return {**plain, "MTPGATE_RUNTIME": str(self.folder / "locks"), "MTPGATE_STANDIN": json.dumps(behaviour or {})}

    def run(self, *arguments: str, behaviour: dict[str, object] | None = None) -> Finished:
        ended = subprocess.run(
            self.command(*arguments),
            cwd=ROOT,
            env=self.environment(behaviour),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        return Finished(ended.returncode, ended.stdout + ended.stderr, self.folder / "out")

    def start(self, *arguments: str, behaviour: dict[str, object] | None = None) -> subprocess.Popen[str]:
        # A shell without job control starts background jobs with SIGINT ignored, and that is inherited.
        return subprocess.Popen(
            ["env", "--default-signal=INT", *self.command(*arguments)],
            cwd=ROOT,
            env=self.environment(behaviour),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def waivers(self, rows: list[dict[str, object]], name: str = "known_bad.yaml") -> Path:
        path = self.folder / name
        path.write_text(json.dumps({"waivers": rows}))  # JSON is YAML.
        return path

    def processes(self) -> list[psutil.Process]:
        """What runs with this suite's folder in its environment: servers, guardians, their children."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("MTPGATE_RUNTIME") == str(self.folder / "locks"):
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[Suite]:
    """The suite with empty folders; whatever a failed test leaves is ended."""
    suite = Suite(tmp_path)
    yield suite
    for process in suite.processes():
        process.kill()
