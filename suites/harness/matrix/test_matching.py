"""Patterns over arguments."""

from __future__ import annotations

from typing import Any

import pytest

from mtpgate.matrix.matching import matches


@pytest.mark.parametrize(
    ("pattern", "value", "expected"),
    [
        (0.7, 0.70, True),
        (0.7, 0.6, False),
        (2, None, False),
        (None, None, True),
        (None, 0, False),
        ((16, 32), 32, True),
        ((16, None), None, True),
        ("fa*", "fa3", True),
        ("fa*", "triton", False),
        ("*", "x", True),
        ("*", True, True),
        ("*", None, False),
        (">1", 2, True),
        (">1", 1, False),
        ("<=0.6", 0.6, True),
        ("!=2", 3, True),
        (">1", "fa3", False),
        (">x", 3, False),
        (True, 1, False),
        (1, True, False),
        (False, False, True),
    ],
)
def test_a_pattern_matches_a_value(pattern: Any, value: Any, expected: bool) -> None:
    assert matches({"a": pattern}, {} if value is None else {"a": value}) is expected


def test_all_arguments_of_a_pattern_must_match() -> None:
    assert not matches({"a": 1, "b": 2}, {"a": 1, "b": 3})
