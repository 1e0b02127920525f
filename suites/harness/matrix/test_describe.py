"""Cells for scripts and for a terminal."""

from __future__ import annotations

import datetime
import io
import json

from rich.console import Console

from mtpgate.matrix.cell import Cell, Expansion, PrunedCell, Waiver
from mtpgate.matrix.describe import describe, tables

WAIVER = Waiver("eagle-*", "startup", "r", until=datetime.date(2027, 1, 31))
EXPANSION = Expansion(
    (
        Cell("nomtp", {"tp_size": 4}, is_reference=True, gpus=4),
        Cell("eagle", {"tp_size": 4, "page_size": 64}, waivers=(WAIVER,)),
    ),
    (PrunedCell("eagle-s9", "[bold]why[/bold]"),),
)


def test_the_json_has_the_keys_that_scripts_rely_on() -> None:
    shown = json.loads(json.dumps(describe(EXPANSION)))
    assert [(cell["id"], cell["args"]) for cell in shown["cells"]] == [
        ("nomtp", {"tp_size": 4}),
        ("eagle", {"tp_size": 4, "page_size": 64}),
    ]
    assert shown["cells"][1]["waivers"] == [
        {"cell": "eagle-*", "check": "startup", "reason": "r", "until": "2027-01-31"}
    ]
    assert (shown["pruned"][0]["id"], shown["pruned"][0]["reason"]) == ("eagle-s9", "[bold]why[/bold]")


def test_the_tables_show_each_cell_with_what_sets_it_apart_and_each_reason_as_it_is() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(*tables(EXPANSION))
    text = console.export_text()
    assert "nomtp (reference)" in text
    assert "page_size 64" in text
    assert text.count("tp_size 4") == 1
    assert "[bold]why[/bold]" in text
