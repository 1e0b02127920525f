"""What a run leaves behind, as plain frozen records: the store writes them, the renderers read them.

They hold names, numbers and text only, so that a stored run can be read without the rooms that produced it.
Times of day are ISO 8601 texts with an offset; durations are seconds; throughput is output tokens/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from mtpgate.matrix.vocabulary import Check

SCHEMA = 1
"""Version of the files' layout. A reader refuses a higher one; new optional fields do not raise it."""

CHECKS: tuple[Check, ...] = get_args(Check)

CheckState = Literal[
    "passed", "failed", "broken", "known_bad", "fixed", "blocked", "unstable", "no_baseline", "insufficient", "skipped"
]
"""``failed``: the product's fault; ``broken``: the machine's; ``known_bad``: failed as its waiver excuses;
``fixed``: waived, yet it passes; ``blocked``: not asked because the cell's launch failed;
``unstable``: too slow in one launch and not in its relaunch; ``no_baseline``: measured, with nothing to compare;
``insufficient``: measured, with too little to compare."""

BY_SEVERITY: tuple[CheckState, ...] = (
    "failed",
    "broken",
    "fixed",
    "blocked",
    "unstable",
    "no_baseline",
    "insufficient",
    "known_bad",
    "passed",
    "skipped",
)
"""All states, worst first."""


@dataclass(frozen=True)
class WaiverRecord:
    """A known-bad mark of a cell, as the matrix has it; ``since`` and ``until`` are ISO dates."""

    check: str
    reason: str
    kind: str | None = None
    phase: str | None = None
    message: str | None = None
    issue: str | None = None
    since: str | None = None
    until: str | None = None


@dataclass(frozen=True)
class CellRecord:
    """One cell that the run set out to launch. ``arguments`` are neutral knobs, never flags."""

    id: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    is_reference: bool = False
    gpus: int = 0
    accept_length_floor: float | None = None
    waivers: tuple[WaiverRecord, ...] = ()


@dataclass(frozen=True)
class PrunedRecord:
    """A point of the matrix that is not launched, and why."""

    id: str
    reason: str
    same_launch_as: str | None = None


@dataclass(frozen=True)
class RunInfo:
    """What is known when a run begins. Texts are empty where nothing is known."""

    started: str
    matrix_name: str
    matrix_path: str
    sglang_version: str
    python: str
    platform: str
    host: str
    suite_revision: str | None
    """Git revision of the suite, with ``+dirty`` where the tree was changed; None outside a checkout."""
    hardware: str
    """For a person: ``8 x NVIDIA RTX PRO 6000 Blackwell, 94.97 GiB`` or ``CPU, 2 cores``."""
    command_line: str
    cells: tuple[CellRecord, ...] = ()
    pruned: tuple[PrunedRecord, ...] = ()
    options: tuple[str, ...] = ()
    """The command line's options that a repetition needs (``--matrix=...``, ``--fault=...``)."""
    fault: str = ""
    """The fault that the engine was told to commit; empty for a run that means it."""
    baselines: str = ""
    """Where the run's baselines come from, for a person; empty where it has none."""


@dataclass(frozen=True)
class ExpectedCheck:
    """A check that was collected: a run is complete when each of them was reported."""

    cell: str
    check: str
    test_id: str


@dataclass(frozen=True)
class CheckRecord:
    """The outcome of one check of one cell."""

    cell: str
    check: str
    test_id: str
    title: str
    state: CheckState
    message: str = ""
    """What a person needs to read; the first line says what is wrong in one sentence."""
    seconds: float = 0.0
    started: str = ""
    next_step: str = ""
    """What to do about it, where the suite knows better than the diagnosis and the check's usual advice."""


@dataclass(frozen=True)
class LostCheck:
    """A collected check that never got a result, e.g. because its worker was killed."""

    cell: str
    check: str
    test_id: str
    reason: str


@dataclass(frozen=True)
class PhaseSpan:
    """A stretch of start-up: seconds since the server process was started; ``end`` is None where it never ended."""

    name: str
    begin: float
    end: float | None


@dataclass(frozen=True)
class FitAttempt:
    """One relaunch of a cell that failed, with something changed: advice on what would fit, never a pass."""

    change: Mapping[str, object]
    """What was changed, by ServerArgs name: the value that was tried."""
    state: Literal["ready", "failed"]
    seconds: float
    text: str = ""
    """What came of it, in a sentence."""
    budget: Mapping[str, object] | None = None
    """As that of :class:`LaunchRecord`."""


@dataclass(frozen=True)
class RelaunchRecord:
    """A further launch of a cell in the same run."""

    number: int
    """Of the launch, from 2 on."""
    why: str
    """In a sentence."""
    state: Literal["ready", "failed"]
    startup_seconds: float
    log: str
    """Name of its log in the cell's folder."""


@dataclass(frozen=True)
class LaunchRecord:
    """One launch of a cell's server, recorded once it is ready or has failed."""

    command: tuple[str, ...]
    state: Literal["ready", "failed"]
    startup_seconds: float
    phases: tuple[PhaseSpan, ...] = ()
    exit_code: int | None = None
    diagnosis: Mapping[str, object] | None = None
    """The fields of :class:`mtpgate.server.diagnosis.Diagnosis`; None for a launch without a fault."""
    log: str = "server.log"
    """Name of the log in the cell's folder."""
    resolved: Mapping[str, object] = field(default_factory=dict)
    """The server's own resolved arguments that are worth showing (attention backend, KV tokens, ...)."""
    budget: Mapping[str, object] | None = None
    """The fields of :class:`mtpgate.server.budget.Budget`, GiB; None where the log tells nothing of memory."""
    forecast: Mapping[str, object] | None = None
    """What was expected before the launch, from another cell's figures: ``from_cell``; ``fits`` (true, false or None);
    ``predicted``, GiB by the segment's name; ``left_gib``; ``text``."""
    fits: tuple[FitAttempt, ...] = ()
    """Relaunches that looked for a change that fits, in the order in which they were tried."""
    unmatched: tuple[str, ...] = ()
    """Lines of the start-up that look like a phase and match no known format."""
    relaunches: tuple[RelaunchRecord, ...] = ()
    """That confirmed a breach, or did not."""


@dataclass(frozen=True)
class MeasurementRecord:
    """One load at one concurrency, with what was said of it."""

    workload: str
    concurrency: int
    output_tokens_per_second: float
    """The launch's value: the median of ``repeats``; 0 where there is none."""
    repeats: tuple[float, ...]
    accept_length: float | None
    ttft_p50_seconds: float | None
    tpot_p50_seconds: float | None
    void: str | None = None
    """Why it does not count, or None."""
    verdict_state: str | None = None
    """``pass``, ``regression``, ``improvement``, ``unstable``, ``insufficient``, ``void`` or ``no_baseline``;
    ``breach``: too slow in the first launch, the relaunch decides; None: not judged."""
    verdict_text: str = ""
    baseline_mean: float | None = None
    baseline_bound: float | None = None
    """The slowest value that is not a regression."""
    baseline_n: int = 0
    when: str = ""
    """When the measurement ended."""
    pass_tokens_per_second: float | None = None
    """Median over the whole passes, ramp-up and tail included."""
    key: Mapping[str, object] | None = None
    """The fields of :class:`mtpgate.judge.baselines.BaselineKey`."""
    accept_counts: Mapping[str, tuple[int, int]] | None = None
    """Tokens and verify steps by prompt, summed over the repeats."""
    conditions: str = ""
    """What the machine was like meanwhile, in a line."""
    condition_figures: Mapping[str, float] = field(default_factory=dict)
    """The same as figures: see :func:`mtpgate.load.conditions.figures`."""
    launch: int = 1
    """2 for the relaunch that confirms a breach, or does not."""
    advice: tuple[str, ...] = ()
    """What the history shows beside the verdict, a sentence each."""


@dataclass(frozen=True)
class FinishRecord:
    """Written when a run came to its own end. ``exit_status`` is pytest's."""

    finished: str
    exit_status: int
    reason: str = ""
    """Why it stopped before all collected checks were asked (Ctrl-C, ``-x``, time budget); empty if it did not."""
