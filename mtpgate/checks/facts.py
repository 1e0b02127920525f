"""What a probe has to know of the server that it asks: its limits, and what of its answers can be compared."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtpgate.checks.probing import Asked

EXACT_TYPES = ("float32", "float")
ALWAYS_GREEDY = ("cpu", "xpu")
"""Devices for which SGLang has no verify step that samples."""


@dataclass(frozen=True)
class Facts:
    """What a probe has to know of the server. None: it does not say."""

    context_length: int | None = None
    """Tokens of prompt and answer together."""
    longest_input: int | None = None
    """Tokens of the longest prompt that the scheduler takes."""
    max_running_requests: int | None = None
    eos_id: int | None = None
    greedy_because: str | None = None
    """Why it answers greedily whatever the temperature; None: it samples."""
    exact: bool = True
    """Computed in float32: an answer is the same at any composition. In a narrower type the last bits depend on the
    shape of the batch and on what of the prompt was cached, so only answers of equal composition are compared."""
    idle_seconds: float = 10.0
    """After the last answer, until nothing runs, waits or holds KV tokens."""
    clock: Callable[[], float] = time.time
    """Wall time, which the server's reports of its load carry too."""
    sleep: Callable[[float], None] = time.sleep


def look(server: Asked, info: Mapping[str, Any]) -> Facts:
    """The facts of a server from its ``/server_info`` and ``/v1/models``."""
    state: Mapping[str, Any] = next(iter(info.get("internal_states") or ()), {})
    running = info.get("max_running_requests") or state.get("effective_max_running_requests_per_dp")
    # 0.5.23 refuses an input of exactly that length already ("506 tokens exceeds ... 506 tokens").
    longest = [below - 1] if (below := _number(info.get("max_req_input_len"))) else []
    data = server.models().get("data") or [{}]
    context = _number(data[0].get("max_model_len") or info.get("context_length"))
    if longest and context is not None:
        # It counts the draft tokens of a verify step, and the one that is asked for, as part of the context.
        longest.append(context - (_number(info.get("speculative_num_draft_tokens")) or 0) - 1)
    return Facts(
        context_length=context,
        longest_input=min(longest, default=None),
        max_running_requests=_number(running),
        eos_id=_eos_id(Path(str(info.get("model_path") or ""))),
        greedy_because=_greedy_because(info),
        exact=info.get("dtype") in EXACT_TYPES,
    )


def _greedy_because(info: Mapping[str, Any]) -> str | None:
    """``_verify_uses_greedy`` in ``srt/speculative/eagle_utils.py`` (0.5.23)."""
    device = info.get("device")
    if info.get("speculative_algorithm") and device in ALWAYS_GREEDY:
        return f"with speculation SGLang's verify step on {device} takes the best token whatever the temperature"
    return None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _eos_id(folder: Path) -> int | None:
    """From the model's own files, where they lie on this machine."""
    for name in ("generation_config.json", "config.json"):
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError):
            continue
        found = found[0] if isinstance(found, list) and found else found
        if isinstance(found, int):
            return found
    return None
