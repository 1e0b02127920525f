"""``known_bad.yaml``: failures that are known, excused until somebody fixes them.

One row excuses one failure of one check of the cells whose ids match a pattern. What a waiver does not say, it does
not excuse: give ``kind``, ``phase`` or ``message`` to excuse that failure only.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from mtpgate.matrix.cell import Expansion, Waiver
from mtpgate.matrix.values import FileModel, faults
from mtpgate.matrix.vocabulary import Check, Kind, Phase
from mtpgate.matrix.yamlfile import read_yaml, validate


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://\S+", text):
        raise ValueError(f"expected a link (https://...), found {text!r}")
    return text


Text = Annotated[str, Field(min_length=1)]
Day = Annotated[datetime.date, Field(strict=True)]


class WaiverRow(FileModel):
    """One row of the file; the keys are those of :class:`mtpgate.matrix.cell.Waiver`."""

    cell: Text
    check: Check
    reason: Text
    matrix: Text | None = None
    test: Text | None = None
    kind: Kind | None = None
    phase: Phase | None = None
    message: Annotated[str, AfterValidator(_regex)] | None = None
    issue: Annotated[str, AfterValidator(_url)] | None = None
    since: Day | None = None
    until: Day | None = None

    @model_validator(mode="after")
    def _ends_after_it_begins(self) -> WaiverRow:
        if self.since and self.until and self.until < self.since:
            raise faults([(("until",), f"{self.until} is before since {self.since}")])
        return self


class _WaiverFile(FileModel):
    waivers: tuple[WaiverRow, ...] = ()


def load_waivers(path: Path) -> tuple[Waiver, ...]:
    """The waivers in ``path``; none if there is no such file. UsageError lists every fault with its line."""
    if not path.exists():
        return ()
    return tuple(Waiver(**row.model_dump()) for row in validate(read_yaml(path), _WaiverFile).waivers)


def unmatched(waivers: Iterable[Waiver], expansions: Sequence[tuple[str, Expansion]]) -> tuple[Waiver, ...]:
    """The waivers that cover no cell of any of these matrices (name and expansion): renamed, pruned or mistyped."""
    return tuple(
        waiver
        for waiver in waivers
        if not any(
            waiver.applies_to(name) and waiver.covers(cell.id, waiver.check)
            for name, expansion in expansions
            for cell in expansion.cells
        )
    )
