"""Does a cell match a pattern over its arguments?

A pattern gives, for each argument, one of: a value (``0.7``), a list of values (any of them), ``null`` (unset), a
shell-style pattern for words (``fa*``; ``"*"`` is any value that is set), or a comparison in quotes (``">1"``,
``"<=0.6"``, ``"!=2"``).
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from mtpgate.matrix.cell import ArgumentValue

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


def matches(patterns: Mapping[str, Any], arguments: Mapping[str, ArgumentValue]) -> bool:
    """True if every argument that the patterns name has a value that its pattern allows."""
    return all(value_matches(pattern, arguments.get(name)) for name, pattern in patterns.items())


def value_matches(pattern: Any, value: ArgumentValue | None) -> bool:
    if isinstance(pattern, tuple):
        return any(value_matches(item, value) for item in pattern)
    if pattern is None or value is None:
        return pattern is value
    if isinstance(pattern, bool) or isinstance(value, bool):
        return pattern is value or pattern == "*"
    return _word_matches(pattern, value) if isinstance(pattern, str) else bool(pattern == value)


def _word_matches(pattern: str, value: str | int | float) -> bool:
    comparison = re.fullmatch(r"(>=|<=|!=|>|<)\s*(\S+)", pattern)
    if comparison and not isinstance(value, str):
        try:
            return _COMPARE[comparison[1]](value, float(comparison[2]))
        except ValueError:
            return False
    return fnmatch.fnmatchcase(str(value), pattern)
