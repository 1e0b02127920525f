"""What a run measured against the baselines as they are now; where the key changed, what is still comparable."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from mtpgate.judge.baselines import BaselineKey, BaselineLaunch, BaselineStore, Found
from mtpgate.judge.comparable import Figure, comparable
from mtpgate.judge.imported import pass_key
from mtpgate.judge.surroundings import condition_changes
from mtpgate.judge.verdict import DEFAULT_ALPHA
from mtpgate.report.records import MeasurementRecord
from mtpgate.report.run import Run
from mtpgate.review.show import findable_drop


@dataclass(frozen=True)
class Difference:
    """One measurement beside the accepted launches of its key, or of the nearest one. Ratios are now / baseline."""

    cell: str
    workload: str
    tokens_per_second: float
    accept_length: float | None
    note: str = ""
    """Why there is nothing to compare with; empty if there is."""
    n: int = 0
    mean: float | None = None
    speed: float | None = None
    """Now / mean; None where that would mean nothing."""
    acceptance: float | None = None
    findable_drop: float | None = None
    changed: tuple[str, ...] = ()
    """``part: recorded -> now``, where only launches under another key have been accepted."""
    still_comparable: tuple[Figure, ...] = ()
    conditions: tuple[str, ...] = ()
    """What was otherwise around it than when the baseline was measured."""


def differences(run: Run, baselines: BaselineStore, *, alpha: float = DEFAULT_ALPHA) -> tuple[Difference, ...]:
    """One for each measurement of the run, in its order. Raises UsageError if a baseline file cannot be read."""
    return tuple(_difference(cell.id, record, baselines, alpha) for cell in run.cells for record in cell.measurements)


def _difference(cell: str, record: MeasurementRecord, baselines: BaselineStore, alpha: float) -> Difference:
    bare = Difference(cell, record.workload, _number(record.output_tokens_per_second), record.accept_length)
    if record.void is not None:
        return _noted(bare, f"void: {record.void.splitlines()[0]}")
    try:
        key = BaselineKey.model_validate(record.key)
    except ValidationError:
        return _noted(bare, "an older suite stored it without its key")
    found = baselines.find(key)
    if found.launches:
        line = _against(bare, found.launches, ("tokens/s", "accept length"), (), record.repeats, alpha)
        usual = [launch.conditions for launch in found.launches]
        return replace(line, conditions=condition_changes(record.condition_figures, usual))
    imported = baselines.find(pass_key(key)).launches
    if imported and record.pass_tokens_per_second is not None:
        passes = replace(bare, tokens_per_second=record.pass_tokens_per_second, note="imported: of whole passes")
        return _against(passes, imported, ("tokens/s",), (), (), alpha)
    return _against_nearest(bare, key, found, alpha)


def _against_nearest(bare: Difference, key: BaselineKey, found: Found, alpha: float) -> Difference:
    if not found.nearest:
        return _noted(bare, found.reason())
    nearest = found.nearest[0].key
    left = comparable(key.changed_parts(nearest))
    if not left:
        return replace(bare, changed=key.differences(nearest))
    return _against(bare, found.nearest, left, key.differences(nearest), (), alpha)


def _against(
    bare: Difference,
    launches: Sequence[BaselineLaunch],
    figures: tuple[Figure, ...],
    changed: tuple[str, ...],
    repeats: Sequence[float],
    alpha: float,
) -> Difference:
    mean = statistics.fmean(launch.tokens_per_second for launch in launches)
    lengths = [launch.accept_length for launch in launches if launch.accept_length is not None]
    speed = bare.tokens_per_second / mean if "tokens/s" in figures else None
    acceptance = None
    if lengths and bare.accept_length is not None and "accept length" in figures:
        acceptance = bare.accept_length / statistics.fmean(lengths)
    return replace(
        bare,
        n=len(launches),
        mean=mean,
        speed=speed,
        acceptance=acceptance,
        findable_drop=findable_drop(launches, repeats, alpha=alpha) if not changed else None,
        changed=changed,
        still_comparable=figures if changed else (),
    )


def _noted(bare: Difference, note: str) -> Difference:
    return replace(bare, note=note)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
