"""The resolved arguments that a server logs in one line, ``server_args=ServerArgs(...)`` or, by 0.5.23, a mapping."""

from __future__ import annotations

import re

MARK = "server_args="

ALIASES = {
    "fp8_gemm_backend": "fp8_gemm_runner_backend",
    "fp4_gemm_backend": "fp4_gemm_runner_backend",
}
"""Flags whose ServerArgs field has another name (``srt/server_args.py``)."""


class LoggedArguments:
    """What one log line says of the launch. Empty text: the log does not tell.

    ``newer``: other lines of the log show SGLang 0.5.15 or later.
    """

    def __init__(self, text: str = "", *, newer: bool = False) -> None:
        self._text = text
        self.newer = newer

    def __bool__(self) -> bool:
        return bool(self._text)

    def get(self, name: str) -> str | int | float | bool | None:
        """The value of ServerArgs field ``name``; None where it is None or not told. Lists come as their text."""
        match = re.search(
            rf"""(?<![\w.])['"]?{re.escape(name)}['"]?\s?[=:]\s?('[^']*'|"[^"]*"|\[[^\]]*\]|[^,)}}\s]+)""", self._text
        )
        return _value(match[1]) if match else None

    def number(self, name: str) -> float | None:
        """A numeric field; None where it is not a number."""
        value = self.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def knows(self, flag: str) -> bool:
        """Whether the SGLang that wrote the log has ``--flag``; True where the log does not tell."""
        return self._has(flag) or not self._complete

    def has(self, flag: str) -> bool:
        """Whether the line names ``--flag``'s field."""
        return self._has(flag)

    @property
    def _complete(self) -> bool:
        """A line of 16 KiB is cut by container runtimes: what is not in it may have been behind the cut."""
        return self._text.rstrip().endswith((")", "}"))

    def _has(self, flag: str) -> bool:
        name = flag.lstrip("-").replace("-", "_")
        name = ALIASES.get(name, name)
        return re.search(rf"""(?<![\w.])['"]?{re.escape(name)}['"]?\s?[=:]""", self._text) is not None


def _value(text: str) -> str | int | float | bool | None:
    if text[:1] in "'\"":
        return text[1:-1]
    named: dict[str, bool | None] = {"None": None, "null": None, "True": True, "true": True, "False": False}
    named["false"] = False
    if text in named:
        return named[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
