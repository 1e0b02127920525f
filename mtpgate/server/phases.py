"""Which start-up phase a server is in, read from its log line by line, for all ranks."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

from mtpgate.matrix.vocabulary import Phase
from mtpgate.server.phase_table import CANDIDATE, RULES, Edge, Target
from mtpgate.server.records import LogRecord, records
from mtpgate.server.timeline import PhaseEvent, PhaseSpan, Timeline, merge

__all__ = ["PhaseEvent", "PhaseSpan", "PhaseTracker", "Timeline"]

AVAILABLE = re.compile(r"(?:avail mem|available_(?:gpu|cpu)_mem)=(-?\d+(?:\.\d+)?) GB")
USAGE = re.compile(r"mem usage=(-?\d+(?:\.\d+)?) GB")
ELAPSED = re.compile(r"(?:[Ee]lapsed(?:=|: ))(\d+(?:\.\d+)?) s")
MOST_FIGURE = 1e6
"""GiB or seconds: beyond it a digit was flipped."""
SPECULATES = re.compile(r"speculative_algorithm['\"]?[=:] ?['\"]\w+['\"]")
DOES_NOT_SPECULATE = re.compile(r"speculative_algorithm['\"]?[=:] ?(?:None|null)")


@dataclass
class _Open:
    """A phase of one rank that is being put together."""

    phase: Phase
    occurrence: int
    begin: PhaseEvent
    end: PhaseEvent | None = None
    implied_end: float | None = None

    def span(self) -> PhaseSpan:
        return PhaseSpan(
            self.phase,
            self.begin.offset_seconds,
            self.end.offset_seconds if self.end else self.implied_end,
            self.begin.available_gib,
            self.end.available_gib if self.end else None,
            self.end.usage_gib if self.end else None,
        )


class PhaseTracker:
    """Turns the lines of one server's log into phases.

    ``speculative`` says whether the launch speculates, if the caller knows; otherwise the ``server_args=`` line tells.
    Until 0.5.12 the text of a capture does not say whether the target's graph is for decode or for verify.
    """

    def __init__(self, speculative: bool | None = None) -> None:
        self.speculative = speculative
        self.current: Phase = "preflight"
        """The phase that any rank entered last."""
        self.current_since: float = 0.0
        """Offset in seconds at which :attr:`current` began."""
        self._first_time: datetime.datetime | None = None
        self._offset = 0.0
        self._ranks: dict[str | None, list[_Open]] = {None: []}
        self._loads: dict[str | None, int] = {}
        self._open_loads: dict[str | None, int] = {}
        self._begun: dict[tuple[str | None, Phase], int] = {}
        self._first_begin: float | None = None

    def feed(self, line: str, offset_seconds: float | None = None) -> list[PhaseEvent]:
        """Take in one line of the log; the events that it holds, mostly none.

        ``offset_seconds`` is the time since the launch; without it the dates in the log are used.
        """
        if offset_seconds is not None:
            self._offset = offset_seconds
        if not CANDIDATE.search(line):
            return []
        return [event for record in records(line) for event in self.feed_record(record, offset_seconds)]

    def feed_record(self, record: LogRecord, offset_seconds: float | None = None) -> list[PhaseEvent]:
        """As :meth:`feed`, for a line that was split already."""
        if offset_seconds is not None:
            self._offset = offset_seconds
        elif record.time is not None:
            self._first_time = self._first_time or record.time
            self._offset = max(self._offset, (record.time - self._first_time).total_seconds())
        text = record.text
        if self.speculative is None and "server_args=" in text:
            if SPECULATES.search(text):
                self.speculative = True
            elif DOES_NOT_SPECULATE.search(text):
                self.speculative = False
        for rule in RULES:
            if rule.pattern.match(text):
                return self._apply(self._resolve(rule.phase, rule.edge, record.rank), rule.edge, record)
        return []

    def phase_of(self, rank: str | None) -> Phase:
        """The phase that ``rank`` itself entered last; the overall one for a rank that never printed one."""
        spans = self._ranks.get(rank)
        return spans[-1].phase if spans else self.current

    def over(self, phase: Phase) -> bool:
        """Whether ``phase`` was begun, and every rank that began it last ended it."""
        open_ = [spans[-1] for spans in self._ranks.values() if spans and spans[-1].phase == phase]
        return bool(open_) and all(opened.end is not None for opened in open_)

    def ranks(self) -> set[str | None]:
        """The ranks that printed a phase so far (None: the main process, or the only rank)."""
        return {rank for rank, spans in self._ranks.items() if spans}

    def timeline(self) -> Timeline:
        """What was seen so far."""
        merged: dict[tuple[Phase, int], list[PhaseSpan]] = {}
        for spans in self._ranks.values():
            for opened in spans:
                merged.setdefault((opened.phase, opened.occurrence), []).append(opened.span())
        first = PhaseSpan("preflight", 0.0, self._first_begin)
        phases = sorted((merge(spans) for spans in merged.values()), key=lambda span: span.begin_seconds)
        by_rank = {rank: tuple(opened.span() for opened in spans) for rank, spans in self._ranks.items() if spans}
        return Timeline((first, *phases), by_rank)

    def _resolve(self, target: Target, edge: Edge, rank: str | None) -> Phase:
        if target == "load":
            # Without prefixes the ranks' lines run together: loads that overlap are one load of several ranks.
            if edge == "begin":
                self._loads[rank] = self._loads.get(rank, 0) + (self._open_loads.get(rank, 0) == 0)
                self._open_loads[rank] = self._open_loads.get(rank, 0) + 1
            else:
                self._open_loads[rank] = max(self._open_loads.get(rank, 0) - 1, 0)
            return "draft_load" if self._loads.get(rank, 0) > 1 else "weight_load"
        if target == "capture_draft":
            return "capture_draft_decode"
        if target == "capture_target":
            if self._loads.get(rank, 0) > 1:
                return "capture_draft_decode"
            return "capture_target_verify" if self.speculative else "capture_target_decode"
        return target

    def _apply(self, phase: Phase, edge: Edge, record: LogRecord) -> list[PhaseEvent]:
        event = PhaseEvent(
            phase,
            edge,
            record.rank,
            self._offset,
            _number(AVAILABLE, record.text),
            _number(USAGE, record.text),
            _number(ELAPSED, record.text),
        )
        spans = self._ranks.setdefault(record.rank, [])
        last = spans[-1] if spans else None
        if edge == "end":
            if last is None or last.phase != phase:
                self._begin(spans, event)  # Its begin was cut off, or has no line of its own.
                last = spans[-1]
            last.end = event
        elif last is not None and last.phase == phase and last.end is None and phase in ("kv_pool", "warmup"):
            return []  # A further line of the same pool, a further sign of the same warm-up.
        else:
            self._begin(spans, event)
        return [event]

    def _begin(self, spans: list[_Open], event: PhaseEvent) -> None:
        if spans and spans[-1].end is None:
            spans[-1].implied_end = event.offset_seconds
        if self._first_begin is None:
            self._first_begin = event.offset_seconds
        key = (event.rank, event.phase)
        occurrence = self._begun[key] = self._begun.get(key, 0) + 1
        spans.append(_Open(event.phase, occurrence, event))
        if event.phase == "ready":
            self._close_warmup(event.offset_seconds)
        if event.phase != self.current:
            self.current = event.phase
            self.current_since = event.offset_seconds

    def _close_warmup(self, offset_seconds: float) -> None:
        """``ready`` is the main process's word; the warm-up may have begun on a rank's line."""
        for spans in self._ranks.values():
            for opened in spans:
                if opened.phase == "warmup" and opened.end is None and opened.implied_end is None:
                    opened.implied_end = offset_seconds


def _number(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    value = float(match[1]) if match else None
    return value if value is not None and abs(value) < MOST_FIGURE else None
