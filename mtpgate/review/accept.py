"""From a finished run's store to accepted launches.

All or nothing: if one of the launches that were named is refused, none is accepted, and every reason is told. A launch
is refused if it failed any other check, for its speed may come from the same fault. That it is slower than its
baseline is no such check: accepting it is how a wanted slowdown is agreed to.
"""

from __future__ import annotations

import datetime
import difflib
import fnmatch
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from mtpgate.errors import UsageError
from mtpgate.judge.baselines import BaselineKey, BaselineLaunch, BaselineStore, Origin, already_accepted
from mtpgate.judge.proposals import ProposalStore
from mtpgate.report.records import CheckRecord, MeasurementRecord
from mtpgate.report.run import CellRun, Run

ACCEPTABLE_VERDICTS = ("breach", "regression", "unstable")
"""Verdicts on the speed itself that fail the throughput check."""


def accept(
    run: Run,
    patterns: Sequence[str],
    baselines: BaselineStore,
    *,
    why: str,
    who: str,
    now: datetime.datetime,
    workloads: Sequence[str] = (),
) -> tuple[BaselineLaunch, ...]:
    """Accept what ``run`` measured of the cells that match ``patterns`` (at ``workloads`` only, if any are named).

    Raises:
        UsageError: no reason, nobody, no such cell, or a launch is refused; nothing has been written then.
        InfrastructureFault: the disk does not take it.
    """
    _need_reason(why, who)
    whole = refusals_of_run(run)
    if whole:
        raise UsageError(f"{run.root}: nothing was accepted: {'; '.join(whole)}")
    cells = chosen(run, patterns)
    launches: list[BaselineLaunch] = []
    refused: list[str] = []
    for cell in cells:
        records = [record for record in cell.measurements if not workloads or record.workload in workloads]
        refused += [f"{cell.id}: {reason}" for reason in refusals(run, cell)]
        if not records:
            at = f" at {', '.join(workloads)}" if workloads else ""
            refused.append(f"{cell.id}: was not measured{at} in this run")
        for record in records:
            try:
                launch = launch_of(run, record, why=why.strip(), who=who.strip(), now=now)
            except UsageError as error:
                refused.append(f"{cell.id} {record.workload}: {error}")
                continue
            twin = baselines.twin(launch)
            if twin is not None:
                refused.append(f"{cell.id} {record.workload}: {already_accepted(twin)}")
            launches.append(launch)
    if refused:
        raise UsageError(f"{run.root}: nothing was accepted:\n" + "\n".join(f"  {line}" for line in refused))
    for launch in launches:
        baselines.add(launch)
    return tuple(launches)


def accept_proposed(
    proposals: ProposalStore,
    patterns: Sequence[str],
    baselines: BaselineStore,
    *,
    why: str,
    who: str,
    now: datetime.datetime,
    workloads: Sequence[str] = (),
) -> tuple[BaselineLaunch, ...]:
    """Accept the waiting proposals of the cells that match ``patterns``.

    Raises:
        UsageError: no reason, nobody, or nothing is waiting there.
        InfrastructureFault: the disk does not take it.
    """
    _need_reason(why, who)
    found: list[BaselineLaunch] = []
    for matrix, cell in proposals.cells():
        if any(fnmatch.fnmatchcase(cell, pattern) for pattern in patterns):
            found += [
                waiting.accepted(why=why.strip(), who=who.strip(), now=now)
                for waiting in proposals.waiting(matrix, cell)
                if not workloads or waiting.launch.key.workload.split(" ", 1)[0] in workloads
            ]
    if not found:
        raise UsageError(f"{', '.join(patterns)}: nothing is proposed there that waits for a review")
    for launch in found:
        baselines.add(launch)
    return tuple(found)


def _need_reason(why: str, who: str) -> None:
    if not why.strip():
        raise UsageError("accepting a baseline needs a reason: --why TEXT")
    if not who.strip():
        raise UsageError("who accepts is not known (no git user.name, no $USER): --who NAME")


def refusals_of_run(run: Run) -> tuple[str, ...]:
    """Why nothing of this run can become a baseline."""
    found = []
    if run.is_going_on:
        found.append("the run is going on: wait for its end")
    elif run.finished is None:
        found.append("the run was killed before its end: run it again")
    if run.info.fault:
        found.append(f"the engine was broken on purpose (--fault {run.info.fault})")
    # What cannot be read may be a check that failed.
    return (*found, *run.problems)


def refusals(run: Run, cell: CellRun) -> tuple[str, ...]:
    """Why a launch cannot become a baseline: the checks that it failed, or that never answered."""
    return tuple(_refusals(run, cell))


def _refusals(run: Run, cell: CellRun) -> Iterator[str]:
    for check in cell.checks:
        if check.state in ("failed", "broken", "blocked") and not _is_its_own_speed(check, cell):
            first = check.message.splitlines()[0] if check.message else "no message"
            yield f"{check.check} {check.state}: {check.title}: {first}"
    lost = {check.test_id: check.reason for check in run.lost if check.cell == cell.id}
    for test_id, reason in lost.items():
        yield f"lost: {test_id}: {reason}"
    for missing in run.missing:
        if missing.cell == cell.id and missing.test_id not in lost:
            yield f"{missing.check} not run: {missing.test_id}"


def _is_its_own_speed(check: CheckRecord, cell: CellRun) -> bool:
    return check.check == "throughput" and any(
        record.verdict_state in ACCEPTABLE_VERDICTS and check.test_id.endswith(f"[{cell.id}-{record.workload}]")
        for record in cell.measurements
    )


def launch_of(run: Run, record: MeasurementRecord, *, why: str, who: str, now: datetime.datetime) -> BaselineLaunch:
    """A measurement of a run as an accepted launch. Raises UsageError if it does not count."""
    speed = record.output_tokens_per_second
    if record.void is not None:
        raise UsageError(f"void: {record.void.splitlines()[0]}")
    if speed is None or not math.isfinite(speed) or speed <= 0:
        raise UsageError("it has no figures")
    if record.key is None or not record.when:
        raise UsageError("an older suite stored it without its key: measure again")
    try:
        return BaselineLaunch(
            key=BaselineKey.model_validate(record.key),
            when=datetime.datetime.fromisoformat(record.when),
            why=why,
            tokens_per_second=round(speed, 4),
            repeats=tuple(round(value, 4) for value in record.repeats),
            accept_length=_rounded(record.accept_length),
            accept_counts=record.accept_counts or None,
            ttft_p50_seconds=_rounded(record.ttft_p50_seconds),
            tpot_p50_seconds=_rounded(record.tpot_p50_seconds),
            conditions=record.condition_figures,
            origin=Origin(
                run=run.info.started,
                launch=record.launch,
                who=who,
                accepted=now,
                sglang_version=run.info.sglang_version,
            ),
        )
    except (ValidationError, ValueError) as error:
        raise UsageError(f"its record cannot be read: {str(error).splitlines()[0]}") from error


def chosen(run: Run, patterns: Sequence[str]) -> tuple[CellRun, ...]:
    """The run's cells that match any pattern, in the run's order. Raises UsageError for a pattern without a cell."""
    ids = [cell.id for cell in run.cells]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(id_, pattern) for id_ in ids):
            raise UsageError(no_such_cell(pattern, ids, f"in {run.root}"))
    return tuple(cell for cell in run.cells if any(fnmatch.fnmatchcase(cell.id, pattern) for pattern in patterns))


def no_such_cell(pattern: str, ids: Sequence[str], where: str | Path) -> str:
    """That nothing is called so, with what is near."""
    near = difflib.get_close_matches(pattern, ids, n=3, cutoff=0.4) or list(ids[:5])
    return f"{pattern}: no such cell {where}" + (f"; nearest: {', '.join(near)}" if near else "; there are none")


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 6)
