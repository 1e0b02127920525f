"""What the tests of the suite itself share."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

LIMIT_SECONDS = 120.0
"""Against a test that hangs; no threshold."""


@pytest.fixture(scope="session")
def wait_until() -> Callable[[Callable[[], bool], str], None]:
    """Poll a condition until it holds; the second argument says what is waited for."""

    def wait(condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"not within {LIMIT_SECONDS:.0f} s: {what}"
            time.sleep(0.1)

    return wait
