"""Which of the findings is the verdict, and the lines that show it."""

from __future__ import annotations

from dataclasses import replace

from mtpgate.matrix.vocabulary import Kind
from mtpgate.server import wording
from mtpgate.server.causes import BYSTANDER, NOTICE
from mtpgate.server.context import Context
from mtpgate.server.diagnosis import Evidence
from mtpgate.server.levers import MODEL_PATH
from mtpgate.server.reader import DEAD_RANK, Finding, Reader

MOST_EVIDENCE = 8
SMALL_POOL_TOKENS = 4096
"""With fewer KV tokens a server starts, and cannot serve an ordinary request."""


def conclude(reader: Reader, tail: tuple[Evidence, ...], context: Context) -> tuple[Finding, tuple[Evidence, ...]]:
    """The verdict as a finding, and its evidence.

    The weightiest finding, the first among equals; without one the phase that was reached and how the process ended.
    """
    return _Conclusion(reader, tail, context).draw()


class _Conclusion:
    def __init__(self, reader: Reader, tail: tuple[Evidence, ...], context: Context) -> None:
        self.reader = reader
        self.tail = tail
        self.context = context

    def draw(self) -> tuple[Finding, tuple[Evidence, ...]]:
        best = max(self.reader.findings, key=lambda finding: (finding.weight, -finding.line), default=None)
        if best is None or (best.weight <= NOTICE and self.context.timed_out) or self._survived(best):
            return self._without_cause()
        best = self._refine(best)
        return best, self._evidence(best)

    def _survived(self, best: Finding) -> bool:
        """Whether the worst that the log shows is an exception of a request, in a server that went on serving."""
        alive = self.context.exit_code in (None, 0) and not self.reader.died
        return best.kind == "unknown" and best.phase == "serving" and alive

    def _evidence(self, best: Finding) -> tuple[Evidence, ...]:
        """The line that decided, where its rank was then, and what else it and the main process said of the end."""
        chosen = {best.line: Evidence(best.line, wording.clean(best.text))}
        began = self.reader.phase_lines.get((best.rank, best.phase)) or self.reader.phase_lines.get((None, best.phase))
        bar = self.reader.progress if best.phase.startswith("capture_") else None
        for line in (began, bar):
            if line is not None and line.line < best.line:
                chosen.setdefault(line.line, line)
        for item in self.reader.findings:
            if item.weight > BYSTANDER and item.rank in (best.rank, None) and len(chosen) < MOST_EVIDENCE:
                chosen.setdefault(item.line, Evidence(item.line, wording.clean(item.text)))
        return tuple(chosen.values())

    def _refine(self, best: Finding) -> Finding:
        """Put together what several lines of the log say of one failure."""
        findings = self.reader.findings
        if best.kind == "unknown" and any(item.weight == BYSTANDER for item in findings):
            # Peers lost their connection to the rank that raised something of its own.
            best = replace(best, kind="child_died")
        killed = next((item for item in findings if item.kind == "host_oom_killed"), None)
        if killed and best.weight == NOTICE and best.kind == "child_died":
            best = replace(best, kind="host_oom_killed", text=killed.text, line=killed.line)
        if best.rank is None and best.weight <= NOTICE:
            named = next((item.rank for item in findings if item.rank and DEAD_RANK.search(item.text)), None)
            best = replace(best, rank=named)
        draft = self.reader.arguments.get("speculative_draft_model_path")
        if best.kind == "bad_argument" and isinstance(draft, str) and MODEL_PATH.search(best.text):
            own = draft != self.reader.arguments.get("model_path") and draft in best.text
            if own or best.phase == "draft_load":
                best = replace(best, kind="draft_checkpoint", phase="draft_load")
        loading = self.reader.loading
        if best.kind == "collective_timeout" and len(loading) == 1 and self.reader.tracker.ranks() != loading:
            # The others waited for the one that never finished loading.
            best = replace(best, rank=next(iter(loading)))
        return best

    def _without_cause(self) -> tuple[Finding, tuple[Evidence, ...]]:
        reader, tail = self.reader, self.tail
        phase = reader.tracker.current
        exit_code = self.context.exit_code
        kind: Kind = "unknown"
        if self.context.timed_out:
            seen = self.context.compiling
            compiling = reader.compile_line > reader.phase_line if seen is None else seen
            kind = "slow_compile" if compiling else "hang"
        elif phase == "ready" and exit_code in (None, 0):
            kind = "ok"
            tokens = reader.ledger.max_total_num_tokens
            if tokens is not None and tokens < SMALL_POOL_TOKENS and reader.pool_line:
                phase, kind, tail = "kv_pool", "kv_pool_small", (reader.pool_line,)
        elif exit_code not in (None, 0, 1, 2):
            kind = "child_died"
        if phase == "ready" and kind != "ok":
            phase = "serving"
        last = tail[-1] if tail else Evidence(0, "the log is empty")
        text = reader.compile_text if kind == "slow_compile" and reader.compile_text else last.text
        return Finding(kind, NOTICE, phase, None, last.line, text), tail
