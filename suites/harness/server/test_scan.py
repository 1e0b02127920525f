"""The scanner finds the lines that a plain search finds, whatever the blocks, and needs no more memory for more log."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpgate.server import scan
from mtpgate.server.scan import Scanner, scan_lines

KEYWORDS = "needle|pin [0-9]"


def naive(data: bytes) -> list[tuple[int, bytes]]:
    """Each stretch between newlines or carriage returns that holds a keyword, with the number of its line."""
    found = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        found += [(number, piece) for piece in line.split(b"\r") if re.search(KEYWORDS.encode(), piece)]
    return found


def scanned(data: bytes) -> list[tuple[int, bytes]]:
    return [(line.number, line.raw) for line in Scanner(io.BytesIO(data), KEYWORDS)]


@pytest.fixture(autouse=True)
def no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "HEAD_LINES", 0)


WORDS = st.sampled_from(
    [b"needle", b"pin 7", b"hay", b"pin", b"\n", b"\r", b"\r\n", b"\xff\x00", b" ", b"needle needle"]
)


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(WORDS, max_size=80), block=st.integers(1, 200))
def test_same_lines_as_a_plain_search_for_any_block_size(parts: list[bytes], block: int) -> None:
    data = b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        # A line longer than a block may be cut: blocks hold the longest line here.
        patch.setattr(scan, "BLOCK_BYTES", max(block, 1))
        patch.setattr(scan, "LONGEST_LINE", 10_000)
        longest = max((len(line) for line in re.split(rb"[\r\n]", data)), default=0)
        patch.setattr(scan, "BLOCK_BYTES", max(block, longest + 1))
        assert scanned(data) == naive(data)


def test_line_without_end_is_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BLOCK_BYTES", 100)
    monkeypatch.setattr(scan, "LONGEST_LINE", 50)
    found = scanned(b"x" * 1000 + b"needle" + b"y" * 1000 + b"\nneedle")
    assert [number for number, _ in found][-1] == 2
    assert all(len(raw) <= 106 for _, raw in found)


def test_tail_is_the_last_lines_with_their_numbers() -> None:
    scanner = scan_lines([f"line {number}" for number in range(1, 40)] + ["", "  "], KEYWORDS)
    assert list(scanner) == []
    assert [(line.number, line.text) for line in scanner.tail()] == [(n, f"line {n}") for n in range(35, 40)]


def test_tail_of_a_long_log_keeps_its_line_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(scan, "TAIL_BYTES", 64)
    scanner = scan_lines([f"line {number}" for number in range(1, 1001)], KEYWORDS)
    list(scanner)
    assert [(line.number, line.text) for line in scanner.tail()][-2:] == [(999, "line 999"), (1000, "line 1000")]


def test_first_lines_are_all_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "HEAD_LINES", 2)
    assert [line.text.strip() for line in scan_lines(["a", "b", "c", "needle", "d"], KEYWORDS)] == ["a", "b", "needle"]


def test_memory_stays_when_the_log_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    import tracemalloc

    monkeypatch.setattr(scan, "BLOCK_BYTES", 64 * 1024)
    peaks = []
    for size in (1, 16):
        data = b"x" * 99 + b"\n"
        stream = io.BytesIO(data * (size * 10_000))
        tracemalloc.start()
        assert list(Scanner(stream, KEYWORDS)) == []
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
