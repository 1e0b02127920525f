"""A log is read while it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpgate.server.follower import LONGEST_LINE_BYTES, LogFollower


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def test_missing_file_has_no_lines(log: Path) -> None:
    assert LogFollower(log).read() == []


def test_half_a_line_waits_for_its_other_half(log: Path) -> None:
    follower = LogFollower(log)
    append(log, b"one\ntw")
    assert follower.read() == ["one"]
    append(log, b"o\n")
    assert follower.read() == ["two"]
    assert follower.read() == []


def test_character_cut_in_the_middle_is_whole_in_the_end(log: Path) -> None:
    follower = LogFollower(log)
    append(log, b"100%|\xe2\x96")
    assert follower.read() == []
    append(log, b"\x88|\n")
    assert follower.read() == ["100%|█|"]


def test_carriage_returns_end_lines_and_crlf_is_one_end(log: Path) -> None:
    append(log, b"0%\r50%\r100%\r\nnext\n")
    assert LogFollower(log).read() == ["0%", "50%", "100%", "next"]


def test_invalid_bytes_are_replaced(log: Path) -> None:
    append(log, b"\xff\xfeok\n")
    assert LogFollower(log).read() == ["\ufffd\ufffdok"]


def test_drain_gives_the_last_line_without_an_end(log: Path) -> None:
    follower = LogFollower(log)
    append(log, b"one\nlast words")
    assert follower.drain() == ["one", "last words"]
    assert follower.drain() == []


def test_truncated_file_is_read_again(log: Path) -> None:
    follower = LogFollower(log)
    append(log, b"a long first life\n")
    follower.read()
    log.write_bytes(b"new\n")
    assert follower.read() == ["new"]


def test_line_without_end_does_not_grow_for_ever(log: Path) -> None:
    follower = LogFollower(log)
    append(log, b"x" * (3 * LONGEST_LINE_BYTES))
    lines = follower.drain()
    assert len(lines) > 1
    assert sum(map(len, lines)) == 3 * LONGEST_LINE_BYTES
