"""One pass over the lines of a log: phases, memory figures, arguments, and findings with a weight."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from mtpgate.matrix.vocabulary import Kind, Phase
from mtpgate.server import wording
from mtpgate.server.arguments import MARK, LoggedArguments
from mtpgate.server.causes import CAUSE, CAUSES, EXCEPTION, EXCEPTION_LINE, NOT_FATAL, NOTICE, OOM_PATTERN, TRACEBACK
from mtpgate.server.diagnosis import Evidence
from mtpgate.server.frames import phase_of_frames
from mtpgate.server.keywords import CAUSE_LINE, COMPILING, PHASE_LINE
from mtpgate.server.ledger import MAX_TOKENS, PROGRESS, Ledger
from mtpgate.server.phase_table import looks_like_phase
from mtpgate.server.phases import PhaseTracker
from mtpgate.server.records import LogRecord, records
from mtpgate.server.scan import Line

MOST_FINDINGS = 10_000
"""A server that logs errors for ever must not fill the memory; only weightier findings are added then."""
SAME_SHAPE = 100
"""Lines of one shape that are read: the first findings decide, and a flood of one line is cheap."""
MOST_SHAPES = 50_000
MOST_FRAMES = 60
MOST_UNMATCHED = 20

COMPILES = re.compile(COMPILING)
NEWER = re.compile(r"Capture target (?:decode|verify|prefill)|num_tokens_per_(?:bs|req)=|Init parallel|max-bs-decode")
"""Texts of SGLang 0.5.15 and later. The hint tells how a flag is spelled; as advice it is worth nothing."""
CODE = "    "
"""How a traceback prints the line of code below a frame."""
DEATH = re.compile(
    r"hit an exception|igquit from a child|SIGQUIT received|scheduler (?:is dead|died)|crashed with exit"
)
DEAD_RANK = re.compile(r"Rank (\d{1,4}) scheduler (?:is dead|died)")
FRAME = re.compile(r" *File [\"<]")
BAR, PLAIN_FRAME = b"Capturing ", b'  File "'
THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]{1,16} ")
USAGE = re.compile(r"\[(--[a-z][a-z0-9-]{2,60})")
MOST_USAGE = 3000


@dataclass(frozen=True)
class Finding:
    """A line that says something of the failure."""

    kind: Kind
    weight: int
    phase: Phase
    rank: str | None
    line: int
    text: str
    frames: tuple[str, ...] = ()
    capturing: int | None = None
    """The batch size (tokens, for prefill) that was being captured then."""


@dataclass
class _Traceback:
    rank: str | None
    frames: list[str] = field(default_factory=list)


class Reader:
    """What the lines of one log say. Feed it with :meth:`read`, then look at its attributes."""

    def __init__(self, speculative: bool | None = None) -> None:
        self.tracker = PhaseTracker(speculative)
        self.ledger = Ledger()
        self.arguments = LoggedArguments()
        self.findings: list[Finding] = []
        self.unmatched: list[Evidence] = []
        self.pool_line: Evidence | None = None
        """The line that tells how many KV tokens the server has."""
        self.phase_lines: dict[tuple[str | None, Phase], Evidence] = {}
        """The line by which each rank entered its latest phase."""
        self.progress: Evidence | None = None
        """The last progress bar of a capture."""
        self.compile_line = 0
        self.compile_text = ""
        self.newer = False
        """Whether the log shows SGLang 0.5.15 or later."""
        self.phase_line = 0
        self.loading: set[str | None] = set()
        """Ranks between the begin and the end of loading weights."""
        self.fatal: list[str] = []
        """The frames, innermost first, of the thread in which an interpreter crashed."""
        self.usage: dict[str, None] = {}
        """The flags that argparse listed."""
        self._traceback: _Traceback | None = None
        self._in_fatal = False
        self.died = False
        """Whether a line says that a process of the server ended or is being ended."""
        self._seen: dict[bytes, int] = {}
        """How often a line of this shape was read and changed nothing but the list of findings."""
        self._changes = 0
        self._heaviest = 0
        self._bar: Line | None = None
        """A progress bar that was not looked at yet."""

    def read(self, lines: Iterable[Line]) -> None:
        """Take in all ``lines``."""
        for line in lines:
            if line.raw.startswith(BAR):
                if CAUSE_LINE.search(line.raw) is None and b"[20" not in line.raw:
                    self._bar = line  # Only the last one matters: it says where a capture died.
                    continue
            elif line.raw.startswith(PLAIN_FRAME):
                self._frame(line.raw.decode("utf-8", "replace"))
                continue
            shape = line.shape
            if self._seen.get(shape, 0) >= SAME_SHAPE:
                continue
            before = self._changes
            told = len(self.findings)
            self._line(line)
            if self._changes == before:
                # It said nothing, or the same as many lines before it: the next of its shape is not worth a look.
                seen = self._seen.get(shape, 0) + (1 if len(self.findings) > told else SAME_SHAPE)
                if len(self._seen) < MOST_SHAPES or shape in self._seen:
                    self._seen[shape] = seen

        self._look_at_bar()

    def _look_at_bar(self) -> None:
        if self._bar is not None:
            bar, self._bar = self._bar, None
            for record in records(bar.text):
                self._phases(bar.number, record)

    def _line(self, line: Line) -> None:
        self._look_at_bar()
        phase_like = PHASE_LINE.search(line.raw) is not None
        cause_like = CAUSE_LINE.search(line.raw) is not None
        for record in records(line.text):
            if phase_like:
                self._phases(line.number, record)
            self._death(line.number, record, cause_like)

    def _phases(self, number: int, record: LogRecord) -> None:
        """What a record says of phases, memory and progress."""
        text = record.text
        if MARK in text and not self.arguments:
            self.arguments = LoggedArguments(text)
        if COMPILES.search(text):
            self._changes += 1
            self.compile_line = number
            self.compile_text = text
        if not self.newer and NEWER.search(text):
            self.newer = True
        events = self.tracker.feed_record(record)
        for event in events:
            self._changes += 1
            self.phase_line = number
            if event.edge == "begin":
                self.phase_lines[event.rank, event.phase] = Evidence(number, wording.clean(text))
            if event.phase in ("weight_load", "draft_load"):
                (self.loading.add if event.edge == "begin" else self.loading.discard)(event.rank)
            self.ledger.event(event)
        if self.ledger.record(record):
            self._changes += 1
        if MAX_TOKENS.match(text):
            self.pool_line = Evidence(number, wording.clean(text))
        elif PROGRESS.search(text):
            self._changes += 1
            self.progress = Evidence(number, wording.clean(text))
        elif not events and looks_like_phase(text) and len(self.unmatched) < MOST_UNMATCHED:
            self.unmatched.append(Evidence(number, wording.clean(text)))
        if len(self.usage) < MOST_USAGE:
            self.usage.update(dict.fromkeys(USAGE.findall(text)))

    def _death(self, number: int, record: LogRecord, cause_like: bool) -> None:
        """What a record says of the end: a frame, the begin of a traceback, or a finding."""
        text = record.text
        if FRAME.match(text):
            self._frame(text)
            return
        if self._traceback and record.time is None and text.startswith(CODE):
            # Code, not a message: it may well raise or name what it does not find. One line of it says more than its
            # bare AssertionError.
            self._traceback.frames.append(text.strip())
            return
        if match := THREAD.search(text):
            # Only the thread that crashed counts, and of several crashes the first.
            self._in_fatal = match[1] == "Current thread" and not self.fatal
        if DEATH.search(text):
            self.died = True
        if TRACEBACK.search(text):
            self._changes += 1
            # The second traceback of a chain ("During handling of the above ...") has no prefix of its own.
            inherited = self._traceback.rank if self._traceback and record.time is None else None
            self._traceback = _Traceback(record.rank or inherited)
        elif (cause_like or self._traceback) and not NOT_FATAL.search(text):
            self._classify(number, record)

    def _frame(self, text: str) -> None:
        self._changes += 1
        if self._in_fatal:
            self.fatal = [*self.fatal, text][:MOST_FRAMES]
        elif self._traceback:
            # The innermost frames are the last ones.
            self._traceback.frames = [*self._traceback.frames[-MOST_FRAMES + 1 :], text]

    def _classify(self, number: int, record: LogRecord) -> None:
        text = record.text
        rank = record.rank
        frames: tuple[str, ...] = ()
        if record.time is None and self._traceback:
            rank = self._traceback.rank
            frames = tuple(self._traceback.frames)
        phase = self.phase_at(rank)
        if phase == "preflight" or (frames and self.tracker.over(phase)):
            # The log's begin was cut off, or that phase had come to its end, and the next prints nothing at its begin.
            phase = phase_of_frames(frames, text, speculative=self.tracker.speculative) or phase
        if OOM_PATTERN.search(text):
            self._add(Finding(_oom_kind(phase), CAUSE, phase, rank, number, text, frames))
            return
        for cause in CAUSES:
            if cause.pattern.search(text) and (cause.frame is None or any(cause.frame.search(item) for item in frames)):
                if match := DEAD_RANK.search(text):
                    rank = self._rank_named(int(match[1])) or rank
                self._add(Finding(cause.kind, cause.weight, cause.phase or phase, rank, number, text, frames))
                return
        if match := DEAD_RANK.search(text):
            self._add(Finding("child_died", NOTICE, phase, self._rank_named(int(match[1])), number, text))
        elif self._traceback and record.time is None and EXCEPTION_LINE.match(text):
            self._add(Finding(_exception_kind(phase, rank, text), EXCEPTION, phase, rank, number, text, frames))

    def _add(self, finding: Finding) -> None:
        if len(self.findings) >= MOST_FINDINGS and finding.weight <= self._heaviest:
            return
        self._heaviest = max(self._heaviest, finding.weight)
        capturing = self.ledger.capturing if finding.phase.startswith("capture_") else None
        self.findings.append(Finding(**{**finding.__dict__, "capturing": capturing}))

    def _rank_named(self, number: int) -> str | None:
        """The printed prefix of tensor-parallel rank ``number``, if the log ever showed it."""
        wanted = f"TP{number}"
        return next((rank for rank in self.tracker.ranks() if rank and wanted in rank.split()), None)

    def phase_at(self, rank: str | None) -> Phase:
        """The phase that something which ``rank`` says now belongs to."""
        if self.tracker.current == "ready":
            return "serving"
        # Ranks march in step, and some phases are printed by the first rank alone; but a rank may still load its
        # weights while another has gone on.
        return self.tracker.phase_of(rank) if rank in self.loading else self.tracker.current


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
    named: dict[Phase, Kind] = {
        "dist_init": "gpu_occupied",  # Before anything of ours is on the GPU.
        "draft_load": "oom_draft_weights",
        "kv_pool": "not_enough_memory",
        "warmup": "oom_serving",
        "ready": "oom_serving",
        "serving": "oom_serving",
    }
    return named.get(phase, "oom_weights")
