"""A pretended GPU: SGLang's memory arithmetic, with the texts in which it runs out.

The KV pool is ``available_after_load - available_before_load * (1 - fraction)``; a capture takes ``graph_base`` and
``graph_per_token`` for each token in its largest graph (batch limit times tokens of a request), piece by piece, so that
the request that fails tells less than what is missing, as on a real GPU. All sizes are GiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64)
PIECE = 2.0
DRAFT_GRAPHS = 0.05
"""Of the target's: a draft is one layer of many."""


@dataclass(frozen=True)
class Memory:
    """What there is, and what a model takes of it."""

    available: float = 94.17
    """Before the weights are loaded."""
    total: float = 94.97
    weights: float = 43.62
    draft_weights: float = 1.83
    draft_share: float = 0.03
    """Of the pools, the draft's."""
    per_token: float = 7.2e-6
    graph_base: float = 1.0
    graph_per_token: float = 0.5


class Arithmetic:
    """The memory of one launch, from its arguments (``ServerArgs`` names)."""

    def __init__(self, memory: Memory, arguments: dict[str, Any]) -> None:
        self.memory = memory
        self.speculative = bool(arguments["speculative_algorithm"])
        self.fraction = float(arguments["mem_fraction_static"] or 0.85)
        limit = int(arguments["cuda_graph_max_bs_decode"] or 32)
        self.sizes = (*(size for size in SIZES if size < limit), limit)
        self.verified = int(arguments["speculative_num_draft_tokens"] or 1) if self.speculative else 1
        self.drafted = int(arguments["speculative_eagle_topk"] or 1) if self.speculative else 1
        self.weights = memory.weights + (memory.draft_weights if self.speculative else 0.0)
        self.rest = memory.available * (1 - self.fraction)
        """What is outside weights and pools."""
        self.pool = memory.available - self.weights - self.rest
        self.draft_pool = self.pool * memory.draft_share if self.speculative else 0.0
        self.tokens = int(self.pool / memory.per_token)
        self.free = self.rest
        """Now; captures take of it."""

    def tokens_of(self, phase: str) -> int:
        return self.drafted if phase == "capture_draft_decode" else self.verified

    def needed(self, phase: str) -> float:
        if phase == "capture_prefill":
            return 0.2
        whole = self.memory.graph_base + self.memory.graph_per_token * self.sizes[-1] * self.tokens_of(phase)
        return whole * (DRAFT_GRAPHS if "draft" in phase else 1.0)

    def shortage(self, phase: str) -> str | None:
        """The exception's text if the memory does not do for a phase."""
        if phase == "kv_pool" and self.pool <= 0:
            least = self.weights / self.memory.available
            return (
                f"ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static="
                f"{self.fraction:g}. Raise --mem-fraction-static above {least + 0.001:.3f} (minimum viable = 1 - "
                f"available/pre = {least:.4f}). If using speculative decoding, draft weights are now counted."
            )
        if not phase.startswith("capture_") or self.needed(phase) <= self.free:
            return None
        free = self.free % PIECE
        used = self.memory.total - free
        return (
            f"Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate {PIECE:.2f} GiB. GPU 0 has a "
            f"total capacity of {self.memory.total:.2f} GiB of which {free:.2f} GiB is free. Including non-PyTorch "
            f"memory, this process has {used:.2f} GiB memory in use. Of the allocated memory {used - 2.4:.2f} GiB is "
            "allocated by PyTorch, with 1.99 GiB allocated in private pools (e.g., CUDA Graphs), and 412.62 MiB is "
            "reserved by PyTorch but unallocated.\nPossible solutions:\n"
            "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)"
        )
