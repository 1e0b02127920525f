"""Texts of strangers (server logs, answers, messages) made fit to be shown: bounded, and without control characters."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# C0 and C1 controls, lone surrogates, and the marks that turn the direction of the text around them.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")

MINUS = "\u2212"

_TAIL_BYTES = 64 * 1024

_MOST = 0.7
"""Of a text that is cut, at least so much is kept even if that cuts a word (a long path, base64)."""


def clean(text: str) -> str:
    """``text`` without terminal escapes; each other control character but tab and newline becomes U+FFFD."""
    return _CONTROLS.sub("\ufffd", _ESCAPES.sub("", text.replace("\r\n", "\n")))


def bounded(text: str, limit: int) -> str:
    """The first ``limit`` characters, cut between words, with a word on how many more there are."""
    text = text.strip("\n")
    if len(text) <= limit:
        return text
    kept = _whole_words(text, limit)
    return f"{kept}\n… {len(text) - len(kept)} more characters"


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` characters of ``text``: `` …`` after the last whole word, ``…`` where a word had to be cut."""
    if len(text) <= limit:
        return text
    kept = _whole_words(text, limit - 2)
    return f"{kept.rstrip()} …" if len(kept) < limit - 2 or text[limit - 2].isspace() else f"{text[: limit - 1]}…"


def _whole_words(text: str, limit: int) -> str:
    """The first ``limit`` characters without the word that is cut; a word that is most of them is cut all the same."""
    if text[limit : limit + 1].isspace():
        return text[:limit]
    end = max(text.rfind(space, 0, limit) for space in " \t\n")
    return text[:end] if end > limit * _MOST else text[:limit]


def number(value: object) -> str:
    """Two or three decimals, as a memory fraction is written: ``0.60``, ``0.645``; what is no number as it is."""
    if not isinstance(value, float):
        return str(value)
    text = f"{value:.3f}"
    return text.removesuffix("0")


def log_tail(path: Path, lines: int = 40, width: int = 400) -> tuple[str, ...]:
    """The last ``lines`` lines of a log, each cut to ``width`` characters; empty if it cannot be read.

    Of a progress bar that rewrote its line, the last state is shown.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except OSError:
        return ()
    found = data.decode("utf-8", "replace").rstrip().split("\n")
    if size > _TAIL_BYTES and len(found) > 1:
        found = found[1:]
    shown = [clean(line.rstrip("\r").rsplit("\r", 1)[-1]) for line in found[-lines:]]
    return tuple(shortened(line, width) for line in shown if line or len(shown) > 1)


def duration(seconds: float) -> str:
    """``8.4 s``, ``12 min 5 s`` or ``2 h 3 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def moment(stamp: str) -> str:
    """An ISO time for a person, in its own zone; what is no ISO time is returned as it is."""
    try:
        return datetime.datetime.fromisoformat(stamp).strftime("%Y-%m-%d %H:%M %Z").strip()
    except ValueError:
        return stamp


def elapsed(started: str, finished: str) -> float | None:
    """Seconds between two ISO times, or None where they cannot be compared."""
    try:
        begin, end = (datetime.datetime.fromisoformat(stamp) for stamp in (started, finished))
        return (end - begin).total_seconds()
    except (ValueError, TypeError):
        return None


def percent(value: float, base: float) -> str:
    """``value`` against ``base``: ``-31.0 %`` with a real minus sign."""
    change = (value / base - 1) * 100
    sign = "+" if change >= 0 else MINUS
    return f"{sign}{abs(change):.1f} %"


def epoch_ms(stamp: str) -> int:
    """Milliseconds from the epoch to an ISO time; 0 for what is none."""
    try:
        return round(datetime.datetime.fromisoformat(stamp).timestamp() * 1000)
    except ValueError:
        return 0
