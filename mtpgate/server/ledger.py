"""Reading the memory budget from a server's log, line by line, for all ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mtpgate.matrix.vocabulary import Phase
from mtpgate.server.budget import Budget, RankBudget
from mtpgate.server.records import LogRecord
from mtpgate.server.timeline import PhaseEvent

_SIZE = r"(\d{1,7}(?:\.\d{1,6})?) ?GB"
POOL = re.compile(r"KV Cache is allocated|Post-capture KV sizing: (?:draft )?KV cache allocated")
POST_CAPTURE_DRAFT = "draft KV cache allocated"
POOL_PARTS = re.compile(rf"\b(?:K|V|KV) size: {_SIZE}")
POOL_TOKENS = re.compile(r"#tokens: (\d{1,12})\b")
DSV4_POOL = re.compile(
    r"DSV4 memory calculation: bytes_per_full_token=(\d{1,9}(?:\.\d{1,9})?).*\bfull_token=(\d{1,12})\b"
)
STATE = re.compile(r"Mamba Cache is allocated")
STATE_PARTS = re.compile(rf"(?:conv_state|ssm_state|intermediate_\w+_cache) size: {_SIZE}")
MAX_TOKENS = re.compile(r"max_total_num_tokens=(\d{1,12})\b")
BATCH_SIZES = re.compile(r"(?:\bbs=|Capture cuda graph bs )\[([\d, ]{1,4000})\]")
TOKENS_PER_REQUEST = re.compile(r"num_tokens_per_(?:bs|req)=(\d{1,6})\b")
PROGRESS = re.compile(rf"Capturing .{{0,40}}?\((?:(?:bs|num_tokens)=(\d{{1,9}}) ?)?.{{0,40}}?avail_mem={_SIZE}\)")

GIB = 1024**3


@dataclass
class _Rank:
    before_load: float | None = None
    after_load: float | None = None
    weights: float | None = None
    draft_weights: float | None = None
    open_loads: int = 0
    counted: bool = False
    """Whether the load that is open was booked already (by another rank, where prefixes are missing)."""
    width: int = 1
    """Ranks whose lines run together, because they have no prefix."""
    pools_closed: int = 0
    pools: set[tuple[int, str]] = field(default_factory=set)
    kv: float | None = None
    draft_kv: float | None = None
    kv_tokens: int | None = None
    state_cache: float | None = None
    pool_end: float | None = None
    capture_start: float | None = None
    graphs: dict[Phase, float] = field(default_factory=dict)
    left: float | None = None


class Ledger:
    """Takes in records and phase events; :meth:`budget` is what they came to so far."""

    def __init__(self) -> None:
        self.max_total_num_tokens: int | None = None
        self.batch_sizes: dict[Phase, tuple[int, ...]] = {}
        self.tokens_per_request: dict[Phase, int] = {}
        self.capturing: int | None = None
        """The batch size (or token count) that the last progress bar of a capture showed."""
        self._phase: Phase = "preflight"
        self._ranks: dict[str | None, _Rank] = {}

    def record(self, record: LogRecord) -> bool:
        """Take in what a line says of pools, batch sizes and progress; False where it says nothing of them."""
        text = record.text
        if POOL.search(text):
            self._pool(self._of(record.rank), text)
        elif match := DSV4_POOL.match(text):
            rank = self._of(record.rank)
            # The line's available_bytes is what the pool may take; this is what it takes.
            rank.kv = float(match[1]) * int(match[2]) / GIB
            rank.kv_tokens = int(match[2])
        elif STATE.match(text):
            rank = self._of(record.rank)
            rank.state_cache = (rank.state_cache or 0.0) + sum(float(size) for size in STATE_PARTS.findall(text))
        elif match := MAX_TOKENS.match(text):
            self.max_total_num_tokens = int(match[1])
        elif "Captur" in text:
            if match := PROGRESS.search(text):
                self.capturing = int(match[1]) if match[1] else self.capturing
            if match := BATCH_SIZES.search(text):
                self.batch_sizes[self._phase] = tuple(int(size) for size in match[1].replace(",", " ").split())
            if match := TOKENS_PER_REQUEST.search(text):
                self.tokens_per_request[self._phase] = int(match[1])
        else:
            return False
        return True

    def event(self, event: PhaseEvent) -> None:
        """Take in the memory figures of a phase's begin or end. Call it before :meth:`record` of the same line."""
        if event.phase != self._phase:
            self._phase = event.phase
            self.capturing = None
        available, usage = event.available_gib, event.usage_gib
        rank = self._ranks.get(event.rank)
        if rank is None:
            if available is None:
                return
            rank = self._of(event.rank)
        if available is not None:
            rank.left = available
        if event.phase in ("weight_load", "draft_load"):
            self._load(rank, event)
        elif event.phase == "kv_pool" and event.edge == "end":
            rank.pools_closed += 1
            rank.pool_end = available
        elif event.phase.startswith("capture_"):
            if event.edge == "begin" and rank.capture_start is None:
                rank.capture_start = available if available is not None else rank.pool_end  # 0.4.3 prints none.
            elif event.edge == "end" and usage is not None:
                # A draft of several steps captures one after the other; ranks without a prefix count once.
                before = rank.graphs.get(event.phase, 0.0)
                rank.graphs[event.phase] = before + usage if rank.width == 1 else max(before, usage)

    def _load(self, rank: _Rank, event: PhaseEvent) -> None:
        if event.edge == "begin":
            rank.counted = rank.counted and rank.open_loads > 0
            rank.open_loads += 1
            rank.width = max(rank.width, rank.open_loads)
            if rank.before_load is None:
                rank.before_load = event.available_gib
            return
        counted = rank.counted and rank.width > 1
        rank.open_loads = max(rank.open_loads - 1, 0)
        if rank.pools_closed == 0:
            rank.after_load = event.available_gib
        if event.usage_gib is None or counted:
            return
        rank.counted = True
        if event.phase == "weight_load":
            rank.weights = event.usage_gib
        else:
            rank.draft_weights = (rank.draft_weights or 0.0) + event.usage_gib

    def _pool(self, rank: _Rank, text: str) -> None:
        size = sum(float(part) for part in POOL_PARTS.findall(text))
        index = rank.pools_closed // rank.width
        if rank.width > 1 and (index, text) in rank.pools:
            return
        rank.pools.add((index, text))
        if index and (POST_CAPTURE_DRAFT in text or "Post-capture" not in text):
            rank.draft_kv = (rank.draft_kv or 0.0) + size
            return
        # A model with sliding windows has two pools, both of the target.
        rank.kv = (rank.kv or 0.0) + size
        if match := POOL_TOKENS.search(text):
            rank.kv_tokens = max(rank.kv_tokens or 0, int(match[1]))

    def after_load(self, rank: str | None) -> float | None:
        """Available memory when all loads before the pool had ended, GiB."""
        found = self._ranks.get(rank)
        return found.after_load if found else None

    def budget(self, fraction: float | None, *, draft_counted: bool) -> Budget:
        """The budgets of all ranks, in the order of their numbers."""
        first = self._first_rank()
        drafts = (
            {name: size for name, size in first.graphs.items() if name.startswith("capture_draft")} if first else {}
        )
        ranks = []
        for name, rank in sorted(self._ranks.items(), key=lambda item: _order(item[0])):
            if rank.before_load is None and rank.left is None:
                continue
            ranks.append(
                RankBudget(
                    rank=name,
                    before_load=rank.before_load,
                    weights=rank.weights,
                    draft_weights=rank.draft_weights,
                    kv=rank.kv,
                    draft_kv=rank.draft_kv,
                    state_cache=rank.state_cache,
                    kv_tokens=rank.kv_tokens,
                    capture_start=rank.capture_start,
                    # Up to 0.5.12 only the first rank prints the draft's captures.
                    graphs=dict(rank.graphs) if any(map(_is_draft, rank.graphs)) else {**rank.graphs, **drafts},
                    left=rank.left,
                )
            )
        return Budget(
            fraction=fraction,
            draft_counted=draft_counted,
            max_total_num_tokens=self.max_total_num_tokens,
            graph_batch_sizes=dict(self.batch_sizes),
            tokens_per_request=dict(self.tokens_per_request),
            ranks=tuple(ranks),
        )

    def _first_rank(self) -> _Rank | None:
        named = sorted(self._ranks, key=_order)
        return self._ranks[named[0]] if named else None

    def _of(self, rank: str | None) -> _Rank:
        return self._ranks.setdefault(rank, _Rank())


def _is_draft(phase: Phase) -> bool:
    return phase.startswith("capture_draft")


def _order(rank: str | None) -> tuple[int, ...]:
    """Ranks by their numbers: ``TP2`` before ``TP10``."""
    return tuple(int(number) for number in re.findall(r"\d{1,6}", rank or ""))
