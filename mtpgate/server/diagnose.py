"""From a server's log to what failed, where, why, and the smallest change that should fix it.

One pass over the lines that could matter (:mod:`mtpgate.server.scan`, :mod:`mtpgate.server.reader`), then the verdict
(:mod:`mtpgate.server.conclude`). The advice comes from the memory budget (:mod:`mtpgate.server.advise`) and the kind
of failure (:mod:`mtpgate.server.levers`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from mtpgate.server import wording
from mtpgate.server.advise import advise
from mtpgate.server.budget import Budget, RankBudget
from mtpgate.server.conclude import conclude
from mtpgate.server.context import Context, fraction, whole
from mtpgate.server.diagnosis import MEMORY_KINDS, Diagnosis, Evidence
from mtpgate.server.keywords import KEYWORDS
from mtpgate.server.levers import Scene, not_levers
from mtpgate.server.memory_facts import Load, MemoryFacts
from mtpgate.server.reader import Finding, Reader
from mtpgate.server.scan import Scanner, scan_lines
from mtpgate.server.timeline import Timeline

FREE_SHARE = 0.75
"""CUDA and NCCL take 1 to 3 GiB of a GPU before the load. With less than this share free somebody else is on it."""
DEFAULT_LOADS = (Load(1, 512), Load(16, 512))
"""What a launch must serve where the context does not say: the suite's usual loads, input and output tokens."""
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
    known = Context(context)
    reader = Reader(known.speculative)
    reader.read(scanner)
    tail = tuple(Evidence(item.number, wording.clean(item.text)) for item in scanner.tail())
    return _Verdict(reader, tail, known).diagnosis(), reader.tracker.timeline()


class _Verdict:
    def __init__(self, reader: Reader, tail: tuple[Evidence, ...], context: Context) -> None:
        self.reader = reader
        self.tail = tail
        self.context = context
        reader.arguments.newer = reader.newer
        # Up to 0.5.12 the draft is loaded after the target's pool; the format of the lines tells the versions.
        self.draft_counted = reader.newer or reader.arguments.has("--cuda-graph-max-bs-decode")

    def diagnosis(self) -> Diagnosis:
        return self._told(*conclude(self.reader, self.tail, self.context))

    def _told(self, best: Finding, evidence: tuple[Evidence, ...]) -> Diagnosis:
        numbers = wording.numbers(best.text) if best.kind.startswith(("oom_", "not_enough")) else {}
        budget = self._budget(best, numbers)
        occupied = self._occupied_by_others(best, budget, numbers)
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
            self.context.tp or whole(arguments.get("tp_size")),
            *(whole(arguments.get(name)) or 1 for name in ("pp_size", "dp_size")),
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

    def _occupied_by_others(self, best: Finding, budget: Budget, numbers: Mapping[str, float]) -> tuple[str, ...]:
        """What says that the memory was short before anything of this launch was on the GPU; empty if it was not."""
        rank = budget.rank(best.rank)
        total = (rank.total if rank else None) or self.context.gpu_total_gib
        before = rank.before_load if rank else None
        if best.kind not in MEMORY_KINDS or not total or before is None or before >= FREE_SHARE * total:
            return ()
        if "in_use" in numbers and total - numbers["in_use"] - numbers.get("free", 0.0) < (1 - FREE_SHARE) * total:
            return ()  # The process that failed has the memory itself.
        where = f"{best.rank}: " if best.rank else ""
        return (f"{where}{before:.1f} of {total:.1f} GiB were free before the load; another process has the rest.",)

    def _scene(self, best: Finding) -> Scene:
        asked = self.context.speculation
        logged = self.reader.arguments
        draft_tokens = whole(asked.get("num_draft_tokens")) or whole(logged.get("speculative_num_draft_tokens"))
        rank = self.reader.ledger.budget(None, draft_counted=True).rank(best.rank)
        pool = rank.kv if rank else None
        topk = whole(asked.get("topk")) or whole(logged.get("speculative_eagle_topk"))
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
        stated = STATED_FRACTION.search(best.text)
        asked = self.context.fraction or fraction(self.reader.arguments.number("mem_fraction_static"))
        if asked is None and stated:
            asked = fraction(float(stated[1]))
        budget = self.reader.ledger.budget(asked, draft_counted=self.draft_counted)
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
            loads=self.context.loads or DEFAULT_LOADS,
            asked=bool(self.context.loads),
            total=numbers.get("total") or self.context.gpu_total_gib,
            capped=self.reader.arguments.number("max_total_tokens") is not None,
        )


def _with_request(rank: RankBudget, numbers: Mapping[str, float] | None) -> RankBudget:
    """The budget of a rank with what its failing request says."""
    if not numbers or "tried" not in numbers:
        return rank
    return replace(rank, wanted=numbers["tried"], left=numbers.get("free", rank.left), total=numbers.get("total"))
