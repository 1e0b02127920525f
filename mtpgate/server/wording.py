"""How a diagnosis is worded, and the numbers and the direction that come with its kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from mtpgate.matrix.vocabulary import Kind, Phase
from mtpgate.server.diagnosis import Advice
from mtpgate.server.records import records

EVIDENCE_CHARACTERS = 500

_SIZE = r"(\d+(?:\.\d+)?) ?(KiB|MiB|GiB|bytes)"
NUMBERS = (
    ("tried", re.compile(rf"[Tt]r(?:ied|ying) to allocate {_SIZE}")),
    ("total", re.compile(rf"total capacity of {_SIZE}|; {_SIZE} total capacity")),
    ("free", re.compile(rf"of which {_SIZE} is free|; {_SIZE} free|\(free: (\d+)(), total")),
    ("in_use", re.compile(rf"(?:this process|Process \d+) has {_SIZE} memory in use")),
)
GIB = {"KiB": 1 / 1024**2, "MiB": 1 / 1024, "GiB": 1.0, "bytes": 1 / 1024**3, "": 1 / 1024**3}


def numbers(text: str) -> dict[str, object]:
    """What an out-of-memory text says, GiB: ``tried``, ``free``, ``total``, ``in_use``, each only if it is there."""
    found: dict[str, object] = {}
    for name, pattern in NUMBERS:
        match = pattern.search(text)
        if match:
            value, unit = [group for group in match.groups() if group is not None][:2]
            found[name] = round(float(value) * GIB[unit], 3)
    return found


_DIRECTION: Mapping[Kind, Literal["lower", "raise"]] = {
    "oom_graph_capture": "lower",
    "oom_serving": "lower",
    "oom_draft_weights": "lower",
    "not_enough_memory": "raise",
}


def advice(kind: Kind) -> Advice:
    """The direction of the memory fraction that helps against ``kind``, if it has to do with memory at all."""
    return Advice(_DIRECTION.get(kind))


_SENTENCE: Mapping[Kind, str] = {
    "ok": "the server got ready",
    "oom_weights": "the weights do not fit on the GPU",
    "oom_draft_weights": "no GPU memory was left for the draft model's weights: lower --mem-fraction-static",
    "not_enough_memory": "no memory was left for the KV pool: raise --mem-fraction-static",
    "oom_graph_capture": "GPU out of memory in graph capture: lower --mem-fraction-static or the graph batch limit",
    "oom_serving": "GPU out of memory while serving: lower --mem-fraction-static",
    "kernel_unsupported": "a kernel is not available for this GPU: choose another backend (not a memory problem)",
    "port_in_use": "the port is in use: choose another with --port",
    "bad_argument": "SGLang refused its arguments",
    "host_oom_killed": "the host's out-of-memory killer ended a process: see the kernel's log",
    "child_died": "a process of the server died",
    "draft_checkpoint": "the draft model's checkpoint cannot be loaded: check --speculative-draft-model-path",
    "hang": "nothing more happened",
    "slow_compile": "kernels were still being compiled",
    "gpu_occupied": "a GPU is occupied by another process",
}


def summary(phase: Phase, kind: Kind, rank: str | None, text: str) -> str:
    """One sentence for a person; ``text`` is the line of the log that shows it."""
    where = f"{phase} on {rank}" if rank else phase
    sentence = _SENTENCE.get(kind, kind.replace("_", " "))
    return f"{where}: {sentence}" + ("" if kind == "ok" else f" ({clean(text)[:200]})")


def clean(text: str) -> str:
    """The last record of a line, without colours and control characters, cut to a readable length."""
    parts = [record.text for record in records(text) if record.text.strip()]
    return (parts[-1].strip() if parts else "")[:EVIDENCE_CHARACTERS]
