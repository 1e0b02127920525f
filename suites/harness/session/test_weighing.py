"""After all cells, the reference is launched once more if a cell left it, and weighs that cell's answers."""

from __future__ import annotations

import html
import json
from typing import Any

import pytest

from mtpgate.report.records import CheckRecord

pytestmark = pytest.mark.slow

CELLS = ("eagle-s1-k1-d2", "eagle-s3-k1-d4")


def weighed(ended: Any, cell: str) -> CheckRecord:
    (record,) = (
        one for row in ended.run.cells for one in row.checks if row.info.id == cell and "weighed" in one.test_id
    )
    return record


def asked_first(ended: Any, cell: str) -> CheckRecord:
    return next(one for row in ended.run.cells for one in row.checks if row.info.id == cell)


def launched_again(ended: Any) -> bool:
    return (ended.out / "cells" / "nomtp" / "server-weighing.log").exists()


def test_where_all_answers_are_equal_nothing_is_launched_again(suite: Any) -> None:
    ended = suite.run("-m", "parity")
    assert ended.code == 0, ended.output
    for cell in CELLS:
        assert weighed(ended, cell).state == "passed"
        assert weighed(ended, cell).message.startswith("nothing to weigh: all ")
    assert not launched_again(ended)
    asked = [json.loads(line)["test_id"] for line in (ended.out / "checks.jsonl").read_text().splitlines()]
    assert ["weighed" in name for name in asked] == [False, False, False, True, True]


def test_near_ties_pass_and_are_counted_after_the_reference_has_weighed_them(suite: Any) -> None:
    ended = suite.run("-m", "parity or serving", "--cell", CELLS[0], behaviour={"answers": "ties_speculative"})
    assert ended.code == 0, ended.output
    assert "left it at a near-tie" in asked_first(ended, CELLS[0]).message
    record = weighed(ended, CELLS[0])
    assert record.state == "passed"
    assert "are near-ties over their whole length" in record.message
    assert launched_again(ended)
    (row,) = (row for row in ended.run.cells if row.info.id == CELLS[0])
    assert row.parity["weighed"] == row.parity["weighed_near_ties"] == row.parity["near_ties"] > 0
    assert row.parity["weighed_differences"] == 0
    # The deferred question comes last, and belongs to its cell.
    assert row.checks[-1] == record
    assert "parity: weighed near ties" in html.unescape((ended.out / "index.html").read_text())
    assert not suite.processes()


def test_a_divergence_has_the_references_word_on_it(suite: Any) -> None:
    ended = suite.run("-m", "parity", "--cell", CELLS[0], behaviour={"answers": "wrong_speculative"})
    record = weighed(ended, CELLS[0])
    assert (ended.code, record.state) == (1, "failed"), ended.output
    assert "weighed by nomtp, launched again: single: 0 of 16 answers equal the reference's" in record.message
    assert "by the reference, launched again: the reference gave its token 77.9 % and this one 13.5 %" in record.message
    assert asked_first(ended, CELLS[0]).state == "failed"
    found = json.loads((ended.out / "cells" / CELLS[0] / "parity.json").read_text())["value"]
    assert found["weighed_near_ties"] == 0


def test_a_broken_reference_fails_itself_and_stands_alone_against_cells_that_agree(suite: Any) -> None:
    ended = suite.run("-m", "parity", behaviour={"answers": "wrong_plain"})
    assert ended.code == 1
    assert asked_first(ended, "nomtp").state == "failed"
    assert "the reference does not choose its own best token" in asked_first(ended, "nomtp").message
    for cell, other in zip(CELLS, reversed(CELLS), strict=True):
        message = weighed(ended, cell).message
        assert f"{other} answered just so too: the reference stands alone" in message
        assert "the reference's own token was not its best there" in message


def test_cells_that_share_a_fault_are_not_taken_for_the_sound_side(suite: Any) -> None:
    ended = suite.run("-m", "parity", behaviour={"answers": "wrong_speculative"})
    for cell, other in zip(CELLS, reversed(CELLS), strict=True):
        message = weighed(ended, cell).message
        assert f"{other} answered just so too: look at what these cells share" in message
        assert "stands alone" not in message


def test_what_was_not_compared_is_not_weighed(suite: Any) -> None:
    ended = suite.run("-m", "parity", "--cell", CELLS[0], behaviour={"answers": "garbage"})
    record = weighed(ended, CELLS[0])
    assert record.state == "blocked"
    assert "were not compared; see its parity check" in record.message
    assert not launched_again(ended)


def test_a_prompt_longer_than_a_chunk_is_made_where_there_is_none(suite: Any) -> None:
    chunks = {"server_info": {"chunked_prefill_size": 1024, "context_length": 2048}}
    ended = suite.run("-m", "parity", "--cell", CELLS[0], behaviour=chunks)
    assert ended.code == 0, ended.output
    for cell in ("nomtp", CELLS[0]):
        assert "1 prompts were prefilled in chunks (up to 1" in asked_first(ended, cell).message
    assert "chunked: 4 of 4 answers equal the reference's" in asked_first(ended, CELLS[0]).message
    usual = suite.run("-m", "parity", "--cell", CELLS[0])
    assert "chunked prefill not seen: " in asked_first(usual, CELLS[0]).message
