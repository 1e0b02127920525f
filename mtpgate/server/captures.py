"""Which graph captures a launch must have gone through, from what the cell is and what the server says it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtpgate.matrix.cell import Cell
from mtpgate.matrix.vocabulary import Phase

DISABLED = "disabled"


def expected_captures(cell: Cell, info: Mapping[str, Any]) -> frozenset[Phase]:
    """The capture phases without which the cell decodes eagerly; ``info`` is the answer of ``/server_info``.

    The verify graph takes the decode graph's place under speculation; a draft-decode graph exists from the second
    step on (``speculative/eagle_worker_v2.py``, SGLang 0.5.23; with num_steps 1 none since 0.5.6). Prefill and
    draft-extend graphs depend on the attention backend and are not required here; one that begins must end.
    The CPU captures only with ``enable_torch_compile``, which SGLang refuses with speculation.
    """
    if info.get("disable_cuda_graph") or _decode_backend(info) == DISABLED:
        return frozenset()
    if info.get("device") == "cpu":
        return frozenset({"capture_target_decode"}) if info.get("enable_torch_compile") else frozenset()
    if cell.speculation is None:
        return frozenset({"capture_target_decode"})
    if cell.speculation.num_steps > 1:
        return frozenset({"capture_target_verify", "capture_draft_decode"})
    return frozenset({"capture_target_verify"})


def _decode_backend(info: Mapping[str, Any]) -> str | None:
    """0.5.15 and later have a graph backend for decode and for prefill each."""
    value = info.get("cuda_graph_backend_decode")
    return value if isinstance(value, str) else None
