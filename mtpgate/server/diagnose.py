"""From a server's log to what failed, where, why, and the smallest change that should fix it.

One pass over the lines that could matter (:mod:`mtpgate.server.scan`, :mod:`mtpgate.server.reader`). At the end the
weightiest finding, the first among equals, is the verdict; without one the phase that was reached and how the process
ended decide. The advice comes from the memory budget (:mod:`mtpgate.server.advise`) and the kind of failure
(:mod:`mtpgate.server.levers`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mtpgate.matrix.vocabulary import Kind
from mtpgate.server import wording
from mtpgate.server.advise import advise
from mtpgate.server.budget import Budget, RankBudget
from mtpgate.server.causes import BYSTANDER, NOTICE
from mtpgate.server.diagnosis import MEMORY_KINDS, Diagnosis, Evidence
from mtpgate.server.keywords import KEYWORDS
from mtpgate.server.levers import MODEL_PATH, Scene, not_levers
from mtpgate.server.memory_facts import Load, MemoryFacts
from mtpgate.server.reader import DEAD_RANK, Finding, Reader
from mtpgate.server.scan import Scanner, scan_lines
from mtpgate.server.timeline import Timeline

MOST_EVIDENCE = 8
SMALL_POOL_TOKENS = 4096
"""With fewer KV tokens a server starts, and cannot serve an ordinary request."""
FREE_SHARE = 0.75
"""CUDA and NCCL take 1 to 3 GiB of a GPU before the load. With less than this share free somebody else is on it."""
DEFAULT_LOADS = (Load(1, 512), Load(16, 512))
"""What a launch must serve where the context does not say: the suite's usual loads, input and output tokens."""
MOST_NUMBER = 1e9
"""Beyond any size in GiB and any count that a launch has: flipped bits, or a context that is none."""
STATED_MINIMUM = re.compile(r"minimum viable = [^=]{1,60}= (\d\.\d{1,6})")
STATED_FRACTION = re.compile(r"mem.fraction.static=(\d(?:\.\d{1,6})?)")


def diagnose_lines(lines: Iterable[str], context: Mapping[str, object] | None = None) -> Diagnosis:
    """Diagnose a log of ``lines``.

    ``context`` is what is known besides the log: ``speculative`` (None or false: the launch does not speculate),
    ``exit_code``, ``timed_out``, ``compiling`` (whether compilers were seen at work then), ``mem_fraction_static``,
    ``gpu_total_gib``, ``workloads`` (a list of mappings with ``concurrency``, ``input_tokens``, ``output_tokens``).
    Never raises for any text or context.
    """
    return _diagnose(scan_lines(lines, KEYWORDS), context or {})


def diagnose_file(path: Path, context: Mapping[str, object] | None = None) -> Diagnosis:
    """As :func:`diagnose_lines`, for a file in any encoding and of any size; OSError if it cannot be read."""
    with path.open("rb") as stream:
        return _diagnose(Scanner(stream, KEYWORDS), context or {})


def examine_file(path: Path, context: Mapping[str, object] | None = None) -> tuple[Diagnosis, Timeline]:
    """As :func:`diagnose_file`, with the phases of the start-up. Times are those of the log's dates, whole seconds."""
    with path.open("rb") as stream:
        return _examine(Scanner(stream, KEYWORDS), context or {})


def _diagnose(scanner: Scanner, context: Mapping[str, object]) -> Diagnosis:
    return _examine(scanner, context)[0]


def _examine(scanner: Scanner, context: Mapping[str, object]) -> tuple[Diagnosis, Timeline]:
    reader = Reader(bool(context["speculative"]) if "speculative" in context else None)
    reader.read(scanner)
    tail = tuple(Evidence(item.number, wording.clean(item.text)) for item in scanner.tail())
    return _Verdict(reader, tail, context).diagnosis(), reader.tracker.timeline()


class _Verdict:
    def __init__(self, reader: Reader, tail: tuple[Evidence, ...], context: Mapping[str, object]) -> None:
        self.reader = reader
        self.tail = tail
        self.context = context
        reader.arguments.newer = reader.newer
        # Up to 0.5.12 the draft is loaded after the target's pool; the format of the lines tells the versions.
        self.draft_counted = reader.newer or reader.arguments.has("--cuda-graph-max-bs-decode")

    def diagnosis(self) -> Diagnosis:
        findings = self.reader.findings
        best = max(findings, key=lambda finding: (finding.weight, -finding.line), default=None)
        timed_out = self.context.get("timed_out") is True
        if best is None or (best.weight <= NOTICE and timed_out) or self._survived(best):
            best, evidence = self._without_cause()
        else:
            best = self._refine(best)
            evidence = self._evidence(best)
        return self._told(best, evidence)

    def _survived(self, best: Finding) -> bool:
        """Whether the worst that the log shows is an exception of a request, in a server that went on serving."""
        alive = self.context.get("exit_code") in (None, 0) and not self.reader.died
        return best.kind == "unknown" and best.phase == "serving" and alive

    def _told(self, best: Finding, evidence: tuple[Evidence, ...]) -> Diagnosis:
        numbers = wording.numbers(best.text) if best.kind.startswith(("oom_", "not_enough")) else {}
        budget = self._budget(best, numbers)
        occupied = self._occupied_by_others(best, budget)
        if occupied:
            best = replace(best, kind="gpu_occupied")
        scene = self._scene(best)
        advice = advise(scene, self._facts(best, budget, numbers))
        if best.kind == "gpu_occupied":
            advice = replace(advice, text=occupied or self._silent_rank())
        found = wording.all_numbers(numbers, budget, best.rank)
        return Diagnosis(
            phase=best.phase,
            kind=best.kind,
            summary=wording.summary(best.phase, best.kind, self._shown_rank(best), best.text, advice),
            rank=self._shown_rank(best),
            numbers=found,
            advice=replace(
                advice,
                text=(
                    *advice.text,
                    *wording.hints(best.kind, best.phase, advice),
                    *(wording.raised_in(best.frames) if best.kind == "unknown" else ()),
                ),
            ),
            not_advice=not_levers(scene),
            evidence=evidence,
            budget=budget,
            unmatched=tuple(self.reader.unmatched),
        )

    def _shown_rank(self, best: Finding) -> str | None:
        """0.4.3 prints ``TP0`` though there is one rank only; a rank is named where there are several."""
        arguments = self.reader.arguments
        sizes = [
            _whole(self.context.get("tp")) or _whole(arguments.get("tp_size")),
            *(_whole(arguments.get(name)) or 1 for name in ("pp_size", "dp_size")),
        ]
        alone = self.reader.tracker.ranks() <= {None, "TP0"} and all(size == 1 for size in sizes)
        return None if alone else best.rank

    def _silent_rank(self) -> tuple[str, ...]:
        """The ranks that complain have the free GPUs; the one that says nothing has the occupied one."""
        tracker = self.reader.tracker
        complained = {item.rank for item in self.reader.findings if item.kind == "gpu_occupied"}
        silent = sorted(rank for rank in tracker.ranks() - complained if rank)
        return (
            (f"{silent[0]} is the only rank that does not complain: its GPU is occupied.",) if len(silent) == 1 else ()
        )

    def _occupied_by_others(self, best: Finding, budget: Budget) -> tuple[str, ...]:
        """What says that the memory was short before anything of this launch was on the GPU; empty if it was not."""
        rank = budget.rank(best.rank)
        total = (rank.total if rank else None) or _number(self.context.get("gpu_total_gib"))
        before = rank.before_load if rank else None
        if best.kind not in MEMORY_KINDS or not total or before is None or before >= FREE_SHARE * total:
            return ()
        where = f"{best.rank}: " if best.rank else ""
        return (f"{where}{before:.1f} of {total:.1f} GiB were free before the load; another process has the rest.",)

    def _scene(self, best: Finding) -> Scene:
        speculation = self.context.get("speculative")
        asked = speculation if isinstance(speculation, Mapping) else {}
        logged = self.reader.arguments
        draft_tokens = _whole(asked.get("num_draft_tokens")) or _whole(logged.get("speculative_num_draft_tokens"))
        rank = self.reader.ledger.budget(None, draft_counted=True).rank(best.rank)
        pool = rank.kv if rank else None
        topk = _whole(asked.get("topk")) or _whole(logged.get("speculative_eagle_topk"))
        return Scene(
            best.kind,
            best.phase,
            logged,
            # A process that crashed left its frames in the interpreter's own words, not in a traceback.
            tuple(self.reader.fatal) or best.frames if best.kind == "child_died" else best.frames,
            best.text,
            usage=tuple(self.reader.usage),
            pool=pool is not None,
            draft_tokens=draft_tokens or 0,
            topk=topk or 0,
        )

    def _budget(self, best: Finding, numbers: Mapping[str, float]) -> Budget:
        fraction = _number(self.context.get("mem_fraction_static")) or self.reader.arguments.number(
            "mem_fraction_static"
        )
        stated = STATED_FRACTION.search(best.text)
        if fraction is None and stated:
            fraction = float(stated[1])
        budget = self.reader.ledger.budget(fraction, draft_counted=self.draft_counted)
        wanted = {best.rank: numbers} if "tried" in numbers else {}
        for finding in self.reader.findings:
            # Other ranks that ran out of memory too, each by its first word of it.
            if finding.kind == best.kind and finding.rank not in wanted and "tried" in numbers:
                wanted[finding.rank] = wording.numbers(finding.text)
        failed = budget.rank(best.rank)
        return replace(
            budget,
            ranks=tuple(
                _with_request(item, wanted.get(best.rank if item is failed else item.rank)) for item in budget.ranks
            ),
        )

    def _facts(self, best: Finding, budget: Budget, numbers: Mapping[str, float]) -> MemoryFacts:
        rank = budget.rank(best.rank)
        stated = STATED_MINIMUM.search(best.text)
        return MemoryFacts(
            fraction=budget.fraction,
            budget=budget,
            rank=rank,
            tried=numbers.get("tried"),
            free=numbers.get("free"),
            after_load=self.reader.ledger.after_load(rank.rank) if rank else None,
            stated_minimum=float(stated[1]) if stated else None,
            capturing=best.capturing,
            loads=_loads(self.context.get("workloads")) or DEFAULT_LOADS,
            asked=bool(_loads(self.context.get("workloads"))),
            total=numbers.get("total") or _number(self.context.get("gpu_total_gib")),
            capped=self.reader.arguments.number("max_total_tokens") is not None,
        )

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
        exit_code = self.context.get("exit_code")
        kind: Kind = "unknown"
        if self.context.get("timed_out") is True:
            seen = self.context.get("compiling")
            compiling = seen if isinstance(seen, bool) else reader.compile_line > reader.phase_line
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


def _with_request(rank: RankBudget, numbers: Mapping[str, float] | None) -> RankBudget:
    """The budget of a rank with what its failing request says."""
    if not numbers or "tried" not in numbers:
        return rank
    return replace(rank, wanted=numbers["tried"], left=numbers.get("free", rank.left), total=numbers.get("total"))


def _loads(value: object) -> tuple[Load, ...]:
    """The workloads of a context, as far as they can be read."""
    found = []
    for item in value if isinstance(value, list | tuple) else ():
        if isinstance(item, Mapping):
            sizes = [_whole(item.get(key)) for key in ("concurrency", "input_tokens", "output_tokens")]
            if all(sizes):
                concurrency, asked, answered = (size or 0 for size in sizes)
                found.append(Load(concurrency, asked + answered))
    return tuple(found)


def _number(value: object) -> float | None:
    """A size or a count that can be one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST_NUMBER:
        return None
    return float(value)


def _fraction(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and 0 < number <= 1 else None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == number // 1 and number > 0 else None
