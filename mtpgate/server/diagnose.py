"""From the lines of a server's log to what failed, where and why."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mtpgate.server.causes import (
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
from mtpgate.server.diagnosis import Advice, Diagnosis, Evidence, Kind, Phase
from mtpgate.server.phase_table import CANDIDATE
from mtpgate.server.phases import LogRecord, PhaseTracker, records

EVIDENCE_CHARACTERS = 500
TAIL_LINES = 5
SMALL_POOL_TOKENS = 4096
"""Below this many KV tokens a server starts and cannot serve one ordinary request."""

_SIZE = r"(\d+(?:\.\d+)?) ?(KiB|MiB|GiB|bytes)"
NUMBERS = (
    ("tried", re.compile(rf"[Tt]r(?:ied|ying) to allocate {_SIZE}")),
    ("total", re.compile(rf"total capacity of {_SIZE}|; {_SIZE} total capacity")),
    ("free", re.compile(rf"of which {_SIZE} is free|; {_SIZE} free|\(free: (\d+)(), total")),
    ("in_use", re.compile(rf"(?:this process|Process \d+) has {_SIZE} memory in use")),
)
GIB = {"KiB": 1 / 1024**2, "MiB": 1 / 1024, "GiB": 1.0, "bytes": 1 / 1024**3, "": 1 / 1024**3}
COMPILING = re.compile(r"DeepGEMM warmup|JIT Compiling|Compiling|torch\.compile|Autotuning process starts")
POOL_TOKENS = re.compile(r"max_total_num_tokens=(\d+)")


@dataclass
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
    line: int
    frames: list[str] = field(default_factory=list)


def diagnose_lines(lines: Iterable[str], context: Mapping[str, object] | None = None) -> Diagnosis:
    """Diagnose a log in one pass over ``lines``.

    ``context`` is what is known besides the log: ``speculative`` (mapping or None), ``exit_code``, ``timed_out``,
    ``mem_fraction_static``, ... (see the cases' contract). Never raises for any text.
    """
    return _Reader(context or {}).read(lines)


def diagnose_file(path: Path, context: Mapping[str, object] | None = None) -> Diagnosis:
    """As :func:`diagnose_lines`, for a file of any encoding; OSError if it cannot be read."""
    # Line numbers are those of an editor: a carriage return inside a progress bar ends no line.
    with path.open(encoding="utf-8", errors="replace", newline="\n") as stream:
        return diagnose_lines(stream, context)


class _Reader:
    def __init__(self, context: Mapping[str, object]) -> None:
        self.context = context
        speculative = bool(context["speculative"]) if "speculative" in context else None
        self.tracker = PhaseTracker(speculative)
        self.findings: list[_Finding] = []
        self.traceback: _Traceback | None = None
        self.tail: collections.deque[Evidence] = collections.deque(maxlen=TAIL_LINES)
        self.last_compile: tuple[int, str] | None = None
        self.last_phase_line = 0
        self.pool: tuple[int, int, str] | None = None
        self.loading: dict[str | None, bool] = {}

    def read(self, lines: Iterable[str]) -> Diagnosis:
        for number, line in enumerate(lines, start=1):
            phase_line = CANDIDATE.search(line) is not None
            if phase_line or INTERESTING.search(line) or (self.traceback and line.startswith("  File ")):
                for record in records(line[:20000]):
                    self._take(number, record)
            elif COMPILING.search(line):
                self.last_compile = (number, line)
            if line.strip():
                # Cut before it is kept, cleaned only if it is shown.
                self.tail.append(Evidence(number, line[-4 * EVIDENCE_CHARACTERS :]))
        return self._conclude()

    def _take(self, number: int, record: LogRecord) -> None:
        text = record.text
        events = self.tracker.feed_record(record)
        if events:
            self.last_phase_line = number
            for event in events:
                if event.phase in ("weight_load", "draft_load"):
                    self.loading[event.rank] = event.edge == "begin"
            match = POOL_TOKENS.match(text)
            if match:
                self.pool = (int(match[1]), number, text)
            return
        if COMPILING.search(text):
            self.last_compile = (number, text)
        if TRACEBACK.search(text):
            rank = record.rank if record.time is not None else (self.traceback.rank if self.traceback else None)
            self.traceback = _Traceback(rank, number)
            return
        if self.traceback and text.startswith("  File "):
            self.traceback.frames.append(text)
            return
        if NOT_FATAL.search(text):
            return
        self._classify(number, record)

    def _classify(self, number: int, record: LogRecord) -> None:
        text = record.text
        rank = record.rank
        if rank is None and record.time is None and self.traceback:
            rank = self.traceback.rank
        if OOM_PATTERN.search(text):
            phase = self._phase(rank)
            self._add(_oom_kind(phase), CAUSE, phase, rank, number, text)
            return
        for cause in CAUSES:
            if not cause.pattern.search(text):
                continue
            if cause.frame and not (self.traceback and any(cause.frame.search(f) for f in self.traceback.frames)):
                continue
            self._add(cause.kind, cause.weight, cause.phase or self._phase(rank), rank, number, text)
            return
        if self.traceback and record.time is None and EXCEPTION_LINE.match(text):
            phase = self._phase(rank)
            # A traceback while the draft is being loaded is about its checkpoint unless a rule above knows better.
            kind: Kind = "draft_checkpoint" if phase == "draft_load" else "unknown"
            if phase == "preflight" and rank is None and text.startswith(("ValueError", "AssertionError")):
                kind = "bad_argument"
            self._add(kind, EXCEPTION, phase, rank, number, text)

    def _phase(self, rank: str | None) -> Phase:
        if self.tracker.current == "ready":
            return "serving"
        own = self.tracker.phase_of(rank)
        # Ranks march in step, and only the first prints its draft's captures; but a rank still loads its weights when
        # another has gone on to the draft's.
        return own if own in ("weight_load", "draft_load") and self.loading.get(rank) else self.tracker.current

    def _add(self, kind: Kind, weight: int, phase: Phase, rank: str | None, line: int, text: str) -> None:
        self.findings.append(_Finding(kind, weight, phase, rank, line, text))

    def _conclude(self) -> Diagnosis:
        best = max(self.findings, key=lambda finding: (finding.weight, -finding.line), default=None)
        if best is None or (best.weight <= NOTICE and self.context.get("timed_out") is True):
            return self._without_cause()
        numbers = _numbers(best.text) if best.kind.startswith("oom_") else {}
        evidence = [Evidence(best.line, _clean(best.text))]
        rank = best.rank if len(self.tracker.timeline().by_rank) > 1 or best.rank else None
        return Diagnosis(
            phase=best.phase,
            kind=best.kind,
            summary=_summary(best.phase, best.kind, rank, best.text),
            rank=rank,
            numbers=numbers,
            advice=_advice(best.kind),
            evidence=tuple(evidence),
        )

    def _without_cause(self) -> Diagnosis:
        tail = tuple(Evidence(item.line, _clean(item.text)) for item in self.tail)
        phase = self.tracker.current
        kind: Kind = "unknown"
        exit_code = self.context.get("exit_code")
        if self.context.get("timed_out") is True:
            compiling = self.last_compile is not None and self.last_compile[0] > self.last_phase_line
            kind = "slow_compile" if compiling else "hang"
            phase = "serving" if phase == "ready" else phase
        elif phase == "ready" and exit_code in (None, 0):
            kind = "ok"
            if self.pool and self.pool[0] < SMALL_POOL_TOKENS:
                line = (Evidence(self.pool[1], _clean(self.pool[2])),)
                text = f"the server got ready with a KV pool of only {self.pool[0]} tokens"
                return Diagnosis("kv_pool", "kv_pool_small", text, advice=_advice("kv_pool_small"), evidence=line)
        elif exit_code is not None:
            phase = "serving" if phase == "ready" else phase
            kind = "child_died" if exit_code not in (0, 1, 2) else "unknown"
        last = tail[-1].text if tail else "the log is empty"
        return Diagnosis(phase, kind, _summary(phase, kind, None, last), evidence=tail)


def _oom_kind(phase: Phase) -> Kind:
    if phase.startswith("capture_"):
        return "oom_graph_capture"
    if phase == "draft_load":
        return "oom_draft_weights"
    if phase in ("serving", "ready", "warmup"):
        return "oom_serving"
    return "not_enough_memory" if phase == "kv_pool" else "oom_weights"


def _numbers(text: str) -> dict[str, object]:
    numbers: dict[str, object] = {}
    for name, pattern in NUMBERS:
        match = pattern.search(text)
        if match:
            value, unit = [group for group in match.groups() if group is not None][:2]
            numbers[name] = round(float(value) * GIB[unit], 3)
    return numbers


_DIRECTION: Mapping[Kind, Literal["lower", "raise"]] = {
    "oom_graph_capture": "lower",
    "oom_serving": "lower",
    "oom_draft_weights": "lower",
    "not_enough_memory": "raise",
    "kv_pool_small": "raise",
}


def _advice(kind: Kind) -> Advice:
    return Advice(_DIRECTION.get(kind))


_SENTENCE: Mapping[Kind, str] = {
    "ok": "the server got ready",
    "oom_weights": "the weights do not fit on the GPU",
    "oom_draft_weights": "no GPU memory was left for the draft model's weights: lower --mem-fraction-static",
    "not_enough_memory": "no memory was left for the KV pool: raise --mem-fraction-static",
    "oom_graph_capture": "GPU out of memory while capturing graphs: lower --mem-fraction-static or the graph batch limit",
    "oom_serving": "GPU out of memory while serving: lower --mem-fraction-static",
    "kernel_unsupported": "a kernel is not available for this GPU: choose another backend (not a memory problem)",
    "port_in_use": "the port is in use: choose another with --port",
    "bad_argument": "SGLang refused its arguments",
    "host_oom_killed": "the host's out-of-memory killer ended a process: see the kernel's log",
    "child_died": "a process of the server died",
    "draft_checkpoint": "the draft model's checkpoint cannot be loaded: check --speculative-draft-model-path",
    "hang": "nothing more happened",
    "slow_compile": "kernels were still being compiled",
    "gpu_occupied": "a GPU is occupied by another process",
}


def _summary(phase: Phase, kind: Kind, rank: str | None, text: str) -> str:
    where = f"{phase} on {rank}" if rank else phase
    sentence = _SENTENCE.get(kind, kind.replace("_", " "))
    return f"{where}: {sentence}" + ("" if kind == "ok" else f" ({_clean(text)[:200]})")


def _clean(text: str) -> str:
    """The last record of a line, without colours and control characters, cut to a readable length."""
    parts = [record.text for record in records(text) if record.text.strip()]
    return (parts[-1].strip() if parts else "")[:EVIDENCE_CHARACTERS]
