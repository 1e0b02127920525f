"""The phase that a traceback's frames belong to: for logs whose begin was cut off."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mtpgate.matrix.vocabulary import Phase

_RULES: tuple[tuple[re.Pattern[str], Phase | None], ...] = (
    (re.compile(r"event_loop_\w+|run_event_loop"), "serving"),
    (re.compile(r"draft_extend_cuda_graph_runner|draft_extend.*capture"), "capture_draft_extend"),
    (re.compile(r"draft\w*_cuda_graph_runner|draft_worker.*init_cuda_graphs"), "capture_draft_decode"),
    (re.compile(r"piecewise_cuda_graph_runner|prefill_cuda_graph_runner|init_prefill_cuda_graph"), "capture_prefill"),
    (re.compile(r"cuda_graph_runner|init_\w*cuda_graphs?|init_device_graphs|Capture (?:cuda|CUDA) graph failed"), None),
    (re.compile(r"init_memory_pool|alloc_memory_pool|memory_pool\.py"), "kv_pool"),
    (re.compile(r"in load_model|model_loader/"), "weight_load"),
    (re.compile(r"init_torch_distributed|init_process_group|initialize_model_parallel"), "dist_init"),
)
"""None: the target's graph, for verify with speculation and for decode without."""

_DRAFT = re.compile(r"maybe_init_draft_worker|init_draft|eagle_worker")


def phase_of_frames(frames: Sequence[str], text: str, *, speculative: bool | None) -> Phase | None:
    """The phase in which code with these ``frames`` (outermost first) runs; None where they do not tell.

    ``text`` is the exception's line.
    """
    told = "\n".join((*frames, text))
    for pattern, phase in _RULES:
        if pattern.search(told):
            if phase is None:
                return "capture_target_verify" if speculative else "capture_target_decode"
            return "draft_load" if phase == "weight_load" and _DRAFT.search(told) else phase
    return None
