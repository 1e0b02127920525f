"""What a failed launch's memory figures say: which fractions can work, what a capture needs, what the pool would hold.

Formulas by SGLang's definition of the fraction (:mod:`mtpgate.server.budget`); all sizes GiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mtpgate.server.budget import Budget, RankBudget

BATCH_ROOM = 0.8
"""Share of the room that a smaller batch may fill by the estimate: a part of what a capture needs does not shrink."""


@dataclass(frozen=True)
class Load:
    """A workload that the launch must serve: ``concurrency`` requests of ``tokens`` (input and output) each."""

    concurrency: int
    tokens: int

    @property
    def name(self) -> str:
        return f"C={self.concurrency}"

    @property
    def kv_tokens(self) -> int:
        return self.concurrency * self.tokens


@dataclass(frozen=True)
class MemoryFacts:
    """What the bounds are computed from. None: the log does not tell."""

    fraction: float | None
    budget: Budget
    rank: RankBudget | None
    """The rank that failed."""
    tried: float | None = None
    free: float | None = None
    after_load: float | None = None
    stated_minimum: float | None = None
    """The "minimum viable" fraction that SGLang 0.5.15 and later print themselves."""
    capturing: int | None = None
    """Batch size at which the capture failed."""
    loads: Sequence[Load] = ()
    asked: bool = True
    """Whether somebody named ``loads``; otherwise they are the suite's usual ones."""
    total: float | None = None
    """The GPU's size, where no line tells the memory before the load."""
    capped: bool = False
    """Whether ``max_total_tokens`` keeps the pool below what the fraction allows."""

    @property
    def before(self) -> float | None:
        """Available before the load on the rank that failed."""
        before = self.rank.before_load if self.rank else None
        return before if before is not None and before > 0 else None

    def largest(self) -> float | None:
        """The largest fraction at which the failing request would have fitted, all else as it was.

        ``1 - (capture_start - free + tried) / before``; where the log does not tell ``capture_start``,
        ``fraction - (tried - free) / before``, which differs by what the pool was rounded by.
        """
        if not self.before or self.tried is None or self.free is None:
            return None
        need = self.need()
        if need is not None:
            largest = 1 - need / self.before
        elif self.fraction is not None:
            largest = self.fraction - (self.tried - self.free) / self.before
        else:
            return None
        return largest if largest > 0 else None

    def least(self) -> float | None:
        """The smallest fraction at which the weights (the draft's too, where they count) fit at all."""
        if not self.before or self.after_load is None:
            return None
        return max(1 - self.after_load / self.before, 0.0)

    def need(self) -> float | None:
        """What the captures are known to need: used since they began, and the request that failed."""
        start = self.rank.capture_start if self.rank else None
        if start is None or self.tried is None or self.free is None:
            return None
        return start - self.free + self.tried

    def expected_pool(self) -> float | None:
        """What the fraction gives the pool: ``fraction * before - weights - state``, the draft's weights where they
        count."""
        rank = self.rank
        if rank is None or not self.before or self.fraction is None or rank.weights is None:
            return None
        draft = (rank.draft_weights or 0.0) if self.budget.draft_counted else 0.0
        return self.fraction * self.before - rank.weights - draft - (rank.state_cache or 0.0)

    def largest_batch(self) -> int | None:
        """The largest batch that was to be captured."""
        return max((max(sizes) for sizes in self.budget.graph_batch_sizes.values() if sizes), default=None)

    def smaller_batch(self) -> int | None:
        """The largest graph batch limit that should do alone, if what a capture needs grows with its batch.

        Captures go from the largest batch to the smallest; only a failure at the first tells how a smaller limit would
        do. None otherwise, and where even the smallest would not.
        """
        largest, need = self.largest_batch(), self.need()
        start = self.rank.capture_start if self.rank else None
        if not largest or need is None or start is None or self.capturing not in (None, largest):
            return None
        sizes = {size for sizes in self.budget.graph_batch_sizes.values() for size in sizes if size < largest}
        return max((size for size in sizes if need * size / largest <= start * BATCH_ROOM), default=None)

    def kv_left(self, fraction: float) -> tuple[int | None, int | None]:
        """KV tokens at another ``fraction``, and how many fewer that is, from this launch's bytes a token."""
        rank = self.rank
        if rank is None or not self.before or not rank.kv or not rank.kv_tokens or self.fraction is None:
            return None, None
        pool = rank.kv + (rank.draft_kv or 0.0)
        if self.capped and self.after_load is not None:
            left = min(pool, self.after_load - self.before * (1 - fraction))
        else:
            left = pool - (self.fraction - fraction) * self.before
        tokens = max(int(left / pool * rank.kv_tokens), 0)
        return tokens, rank.kv_tokens - tokens
