"""Where each GPU's memory went, phase by phase, against the memory fraction.

SGLang's own definition (``srt/model_executor/pool_configurator.py``, ``srt/arg_groups/memory_hook.py``):
``--mem-fraction-static`` is (weights + KV pool) / (memory that was available before the weights were loaded). The pool
gets ``available_after_load - available_before_load * (1 - fraction)``; about ``available_before_load * (1 - fraction)``
is left for graphs, activations and communication. All sizes are GiB (SGLang prints "GB").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mtpgate.matrix.vocabulary import Phase

STATIC_NAMES = ("weights", "draft_weights", "kv", "draft_kv", "state_cache")
"""What counts into the memory fraction (the draft's weights from SGLang 0.5.15 on)."""


@dataclass(frozen=True)
class RankBudget:
    """The memory of one rank's GPU, GiB. None: the log does not say."""

    rank: str | None
    """The printed prefix, e.g. ``DP0 TP3``; None with one rank."""
    before_load: float | None = None
    """Available before the weights were loaded: what the fraction is a fraction of."""
    weights: float | None = None
    draft_weights: float | None = None
    """The sum over all draft heads."""
    kv: float | None = None
    """The target's KV pool (K + V)."""
    draft_kv: float | None = None
    state_cache: float | None = None
    """Convolution and state caches of hybrid (Mamba) models."""
    kv_tokens: int | None = None
    capture_start: float | None = None
    """Available when the first graph capture began."""
    graphs: Mapping[Phase, float] = field(default_factory=dict)
    """By capture phase. Where only the first rank prints the draft's, these are its figures."""
    left: float | None = None
    """Available at the last line that told it; for a rank that ran out of memory, what was free then."""
    wanted: float | None = None
    """The failing request."""
    total: float | None = None
    """The GPU's size as PyTorch sees it; only an out-of-memory text tells it."""

    def segments(self) -> tuple[tuple[str, float], ...]:
        """``(name, GiB)`` in the order in which they were taken, ``other`` and ``left`` last; they add up to
        :attr:`before_load`. Empty where that is unknown."""
        if self.before_load is None:
            return ()
        known = [(name, getattr(self, name)) for name in STATIC_NAMES]
        taken = [(name, float(size)) for name, size in known if size]
        taken += [(phase, size) for phase, size in self.graphs.items() if size]
        left = self.left if self.left is not None else 0.0
        other = self.before_load - left - sum(size for _, size in taken)
        # What the log does not name: activations, workspaces, communication buffers, fragmentation.
        return (*taken, ("other", max(other, 0.0)), ("left", left))


@dataclass(frozen=True)
class Budget:
    """The budgets of all ranks of one launch, and the fraction that they were made for."""

    fraction: float | None = None
    draft_counted: bool = True
    """Whether this SGLang counts the draft's weights into the fraction (by 0.5.15)."""
    max_total_num_tokens: int | None = None
    graph_batch_sizes: Mapping[Phase, tuple[int, ...]] = field(default_factory=dict)
    tokens_per_request: Mapping[Phase, int] = field(default_factory=dict)
    ranks: tuple[RankBudget, ...] = ()

    def rank(self, name: str | None) -> RankBudget | None:
        """The budget of the rank with this printed prefix; without one, of the rank with the least memory left."""
        named = next((item for item in self.ranks if item.rank == name), None)
        if named is not None or name is not None:
            return named
        known = [item for item in self.ranks if item.before_load is not None]
        return min(known, key=lambda item: item.before_load or 0.0, default=None)
