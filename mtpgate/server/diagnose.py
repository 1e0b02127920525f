"""From the lines of a server's log to what failed, where and why.

One pass: each line that could matter is split into records and becomes an event of a phase, a part of a traceback, or a
finding with a weight (:mod:`mtpgate.server.causes`). At the end the weightiest finding, the first among equals, is the
verdict; without one the phase that was reached and how the process ended decide.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mtpgate.matrix.vocabulary import Kind, Phase
from mtpgate.server import wording
from mtpgate.server.causes import (
    BYSTANDER,
    CAUSE,
    CAUSES,
    EXCEPTION,
    EXCEPTION_LINE,
    INTERESTING,
    NOT_FATAL,
    NOTICE,
    OOM_PATTERN,
    TRACEBACK,
)
from mtpgate.server.diagnosis import Diagnosis, Evidence
from mtpgate.server.phase_table import CANDIDATE
from mtpgate.server.phases import PhaseTracker
from mtpgate.server.records import LogRecord, records

TAIL_LINES = 5
LONGEST_LINE = 20_000
"""Characters of a line that are looked at: a line of binary may have no end."""
MOST_EVIDENCE = 5
MOST_FINDINGS = 10_000
"""A server that logs one error for ever must not fill the memory; the first findings decide."""
SMALL_POOL_TOKENS = 4096
"""With fewer KV tokens a server starts, and cannot serve an ordinary request."""

COMPILING = re.compile(r"DeepGEMM warmup|JIT Compiling|Autotuning process starts")
POOL_TOKENS = re.compile(r"max_total_num_tokens=(\d{1,12})\b")
DEAD_RANK = re.compile(r"Rank (\d{1,4}) scheduler (?:is dead|died)")


@dataclass(frozen=True)
class _Finding:
    kind: Kind
    weight: int
    phase: Phase
    rank: str | None
    line: int
    text: str


@dataclass
class _Traceback:
    rank: str | None
    frames: list[str] = field(default_factory=list)


def diagnose_lines(lines: Iterable[str], context: Mapping[str, object] | None = None) -> Diagnosis:
    """Diagnose a log in one pass over ``lines``.

    ``context`` is what is known besides the log: ``speculative`` (None or false: the launch does not speculate),
    ``exit_code``, ``timed_out``. Never raises for any text.
    """
    return _Reader(context or {}).read(lines)


def diagnose_file(path: Path, context: Mapping[str, object] | None = None) -> Diagnosis:
    """As :func:`diagnose_lines`, for a file in any encoding; OSError if it cannot be read."""
    # Line numbers are those of an editor: a carriage return inside a progress bar ends no line.
    with path.open(encoding="utf-8", errors="replace", newline="\n") as stream:
        return diagnose_lines(stream, context)


class _Reader:
    def __init__(self, context: Mapping[str, object]) -> None:
        self.context = context
        self.tracker = PhaseTracker(bool(context["speculative"]) if "speculative" in context else None)
        self.findings: list[_Finding] = []
        self.traceback: _Traceback | None = None
        self.tail: collections.deque[Evidence] = collections.deque(maxlen=TAIL_LINES)
        self.compile_line = 0
        self.phase_line = 0
        self.pool: tuple[int, Evidence] | None = None
        self.loading: set[str | None] = set()
        """Ranks between the begin and the end of loading weights."""

    def read(self, lines: Iterable[str]) -> Diagnosis:
        for number, line in enumerate(lines, start=1):
            if CANDIDATE.search(line) or INTERESTING.search(line) or (self.traceback and line.startswith("  File ")):
                for record in records(line[:LONGEST_LINE]):
                    self._take(number, record)
            if COMPILING.search(line):
                self.compile_line = number
            if line.strip():
                # The end of a line is its latest part; cleaned only if it is shown.
                self.tail.append(Evidence(number, line[-4 * wording.EVIDENCE_CHARACTERS :]))
        return self._conclude()

    def _take(self, number: int, record: LogRecord) -> None:
        text = record.text
        for event in self.tracker.feed_record(record):
            self.phase_line = number
            if event.phase in ("weight_load", "draft_load"):
                (self.loading.add if event.edge == "begin" else self.loading.discard)(event.rank)
            if match := POOL_TOKENS.match(text):
                self.pool = (int(match[1]), Evidence(number, wording.clean(text)))
        if TRACEBACK.search(text):
            # The second traceback of a chain ("During handling of the above ...") has no prefix of its own.
            inherited = self.traceback.rank if self.traceback and record.time is None else None
            self.traceback = _Traceback(record.rank or inherited)
        elif self.traceback and text.startswith("  File "):
            self.traceback.frames.append(text)
        elif not NOT_FATAL.search(text) and len(self.findings) < MOST_FINDINGS:
            self._classify(number, record)

    def _classify(self, number: int, record: LogRecord) -> None:
        text = record.text
        rank = record.rank
        if record.time is None and self.traceback:
            rank = self.traceback.rank
        phase = self._phase(rank)
        if OOM_PATTERN.search(text):
            self.findings.append(_Finding(_oom_kind(phase), CAUSE, phase, rank, number, text))
            return
        for cause in CAUSES:
            if cause.pattern.search(text) and (cause.frame is None or self._in_frames(cause.frame)):
                if match := DEAD_RANK.search(text):
                    rank = self._rank_named(int(match[1])) or rank
                self.findings.append(_Finding(cause.kind, cause.weight, cause.phase or phase, rank, number, text))
                return
        if match := DEAD_RANK.search(text):
            found = _Finding("child_died", NOTICE, phase, self._rank_named(int(match[1])), number, text)
            self.findings.append(found)
        elif self.traceback and record.time is None and EXCEPTION_LINE.match(text):
            self.findings.append(_Finding(_exception_kind(phase, rank, text), EXCEPTION, phase, rank, number, text))

    def _in_frames(self, pattern: re.Pattern[str]) -> bool:
        return self.traceback is not None and any(pattern.search(frame) for frame in self.traceback.frames)

    def _rank_named(self, number: int) -> str | None:
        """The printed prefix of tensor-parallel rank ``number``, if the log ever showed it."""
        wanted = f"TP{number}"
        return next((rank for rank in self.tracker.ranks() if rank and wanted in rank.split()), None)

    def _phase(self, rank: str | None) -> Phase:
        if self.tracker.current == "ready":
            return "serving"
        # Ranks march in step, and some phases are printed by the first rank alone; but a rank may still load its
        # weights while another has gone on.
        return self.tracker.phase_of(rank) if rank in self.loading else self.tracker.current

    def _conclude(self) -> Diagnosis:
        best = max(self.findings, key=lambda finding: (finding.weight, -finding.line), default=None)
        if best is None or (best.weight <= NOTICE and self.context.get("timed_out") is True):
            return self._without_cause()
        best = self._refine(best)
        return Diagnosis(
            phase=best.phase,
            kind=best.kind,
            summary=wording.summary(best.phase, best.kind, best.rank, best.text),
            rank=best.rank,
            numbers=wording.numbers(best.text) if best.kind.startswith("oom_") else {},
            advice=wording.advice(best.kind),
            evidence=self._evidence(best),
        )

    def _evidence(self, best: _Finding) -> tuple[Evidence, ...]:
        """The line that decided, then what else the same rank and the main process said of the end."""
        related = [
            item
            for item in self.findings
            if item.line != best.line and item.weight > BYSTANDER and item.rank in (best.rank, None)
        ]
        chosen = [best, *related[: MOST_EVIDENCE - 1]]
        return tuple(Evidence(item.line, wording.clean(item.text)) for item in chosen)

    def _refine(self, best: _Finding) -> _Finding:
        """Put together what several lines of the log say of one failure."""
        if best.kind == "unknown" and any(item.weight == BYSTANDER for item in self.findings):
            # Peers lost their connection to the rank that raised something of its own.
            best = replace(best, kind="child_died")
        killed = next((item for item in self.findings if item.kind == "host_oom_killed"), None)
        if killed and best.weight == NOTICE and best.kind == "child_died":
            best = replace(best, kind="host_oom_killed", text=killed.text, line=killed.line)
        if best.rank is None and best.weight <= NOTICE:
            named = next((item.rank for item in self.findings if item.rank and DEAD_RANK.search(item.text)), None)
            best = replace(best, rank=named)
        if best.kind == "collective_timeout" and len(self.loading) == 1 and self.tracker.ranks() != self.loading:
            # The others waited for the one that never finished loading.
            best = replace(best, rank=next(iter(self.loading)))
        return best

    def _without_cause(self) -> Diagnosis:
        tail = tuple(Evidence(item.line, wording.clean(item.text)) for item in self.tail)
        phase = self.tracker.current
        exit_code = self.context.get("exit_code")
        kind: Kind = "unknown"
        if self.context.get("timed_out") is True:
            kind = "slow_compile" if self.compile_line > self.phase_line else "hang"
        elif phase == "ready" and exit_code in (None, 0):
            kind = "ok"
            if self.pool and self.pool[0] < SMALL_POOL_TOKENS:
                phase, kind, tail = "kv_pool", "kv_pool_small", (self.pool[1],)
        elif exit_code not in (None, 0, 1, 2):
            kind = "child_died"
        if phase == "ready" and kind != "ok":
            phase = "serving"
        last = tail[-1].text if tail else "the log is empty"
        return Diagnosis(
            phase, kind, wording.summary(phase, kind, None, last), advice=wording.advice(kind), evidence=tail
        )


def _exception_kind(phase: Phase, rank: str | None, text: str) -> Kind:
    """Of an exception that no rule knows."""
    if phase == "draft_load":
        return "draft_checkpoint"  # What else is read there is the draft's checkpoint.
    if phase == "preflight" and rank is None and text.startswith(("ValueError", "AssertionError")):
        return "bad_argument"  # Raised by the main process while it checks its arguments.
    return "unknown"


def _oom_kind(phase: Phase) -> Kind:
    if phase.startswith("capture_"):
        return "oom_graph_capture"
    if phase == "draft_load":
        return "oom_draft_weights"
    if phase == "kv_pool":
        return "not_enough_memory"
    return "oom_serving" if phase in ("serving", "ready", "warmup") else "oom_weights"
