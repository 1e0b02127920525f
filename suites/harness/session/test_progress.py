"""What a person sees who waits for a launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.progress import Progress
from mtpgate.server.progress import Progress as LaunchProgress


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def progress(lines: list[str]) -> Progress:
    """On something that is no terminal."""
    reporter = SimpleNamespace(isatty=False, ensure_newline=lambda: None, write_line=lines.append)
    capture: Any = SimpleNamespace(global_and_fixture_disabled=pytest.MonkeyPatch.context)
    plugins = {"terminalreporter": reporter, "capturemanager": capture}
    manager = SimpleNamespace(get_plugin=plugins.get)
    config: Any = SimpleNamespace(pluginmanager=manager, getoption=lambda _, default: default)
    return Progress(config)


def test_silence_is_mentioned_with_its_limit(progress: Progress, lines: list[str]) -> None:
    progress.launching(LaunchProgress("a-cell", "weight_load", 90.0, 120.0, "Load weight begin.", 85.2, 300.0))
    assert lines == [
        "mtpgate: a-cell: weight_load for 90 s, 120 s in all, silent for 85 s (limit 300 s) | Load weight begin."
    ]


def test_short_silence_is_not_worth_a_word(progress: Progress, lines: list[str]) -> None:
    progress.launching(LaunchProgress("a-cell", "weight_load", 90.0, 120.0, "Load weight begin.", 9.0, 300.0))
    assert lines == ["mtpgate: a-cell: weight_load for 90 s, 120 s in all | Load weight begin."]
