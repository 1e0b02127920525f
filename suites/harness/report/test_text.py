"""Strangers' texts: bounded, and without what a terminal or a browser would obey."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpgate.report.text import bounded, clean, duration, elapsed, log_tail, moment, number, shortened


def test_terminal_escapes_go_and_controls_become_visible() -> None:
    assert clean("\x1b[31mred\x1b[0m \x1b]0;title\x07x\x00\u202ey\tz\r\n") == "redx\ufffd\ufffdy\tz\n".replace(
        "redx", "red x"
    )


def test_bounding_says_how_much_is_missing() -> None:
    assert bounded("abcdef", 4) == "abcd\n… 2 more characters"
    assert bounded("abcd\n", 4) == "abcd"


def test_a_text_is_cut_between_words_and_says_so() -> None:
    assert shortened("no room for the verify graphs", 29) == "no room for the verify graphs"
    assert shortened("no room for the verify graphs", 20) == "no room for the …"
    assert shortened("no room for the verify graphs", 24) == "no room for the verify …"
    assert bounded("no room for the verify graphs", 22) == "no room for the verify\n… 7 more characters"
    assert bounded("no room for the verify graphs", 20) == "no room for the\n… 14 more characters"


def test_a_word_that_is_most_of_a_text_is_cut_with_a_mark() -> None:
    assert shortened("a " + "x" * 50, 20) == "a " + "x" * 17 + "…"
    assert all(len(shortened("some words of a text " * 9, limit)) <= limit for limit in range(5, 60))


@pytest.mark.parametrize(
    ("value", "text"), [(0.6, "0.60"), (0.645, "0.645"), (0.7000001, "0.70"), (16, "16"), (None, "None")]
)
def test_a_fraction_has_two_or_three_decimals(value: object, text: str) -> None:
    assert number(value) == text


def test_the_tail_of_a_log_is_its_last_lines_with_the_last_state_of_a_progress_bar(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join(f"line {number}\n" for number in range(50)) + "0%\r50%\r100%\nend " + "x" * 500)
    tail = log_tail(log, lines=3, width=20)
    assert tail == ("line 49", "100%", "end xxxxxxxxxxxxxxx…")


def test_the_tail_of_a_huge_log_starts_with_a_whole_line(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join(f"line {number:06d}\n" for number in range(20_000)))
    tail = log_tail(log, lines=100_000)
    assert tail[-1] == "line 019999"
    assert all(len(line) == len(tail[-1]) for line in tail)


@pytest.mark.parametrize("content", [None, b""])
def test_no_log_and_an_empty_log_have_no_tail(tmp_path: Path, content: bytes | None) -> None:
    log = tmp_path / "server.log"
    if content is not None:
        log.write_bytes(content)
    assert log_tail(log) == ()


def test_bytes_that_are_no_text_do_not_stop_the_tail(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\xff\xfe bad\n")
    assert log_tail(tmp_path / "log") == ("\ufffd\ufffd bad",)


@pytest.mark.parametrize(
    ("seconds", "text"), [(8.44, "8.4 s"), (59.99, "1 min 0 s"), (725.0, "12 min 5 s"), (7400.0, "2 h 3 min")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_times_that_are_none_do_not_stop_the_page() -> None:
    assert moment("soon") == "soon"
    assert moment("2026-03-02T01:02:00+00:00") == "2026-03-02 01:02 UTC"
    assert elapsed("soon", "later") is None
    assert elapsed("2026-03-02T01:02:00", "2026-03-02T01:02:00+00:00") is None
