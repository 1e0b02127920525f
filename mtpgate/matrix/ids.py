"""The id of a cell: short, readable, the same every night, safe in file names and on a command line.

``eagle-s1-k1-d2-f0.60-bs16`` is EAGLE with 1 step, topk 1, 2 draft tokens, memory fraction 0.60 and graphs up to
batch size 16; ``nomtp-...`` is no speculation. Only arguments that tell cells of the matrix apart are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mtpgate.matrix.cell import ArgumentValue

_SPECULATIVE = {
    "speculative_num_steps": "s",
    "speculative_eagle_topk": "k",
    "speculative_num_draft_tokens": "d",
}
_SHORT = {
    "mem_fraction_static": "f",
    "cuda_graph_max_bs": "bs",
    "cuda_graph_max_bs_decode": "bs",
    "tp_size": "tp",
    "dp_size": "dp",
    "pp_size": "pp",
    "ep_size": "ep",
    "page_size": "page",
    "max_running_requests": "run",
    "max_total_tokens": "tok",
    "context_length": "ctx",
    "chunked_prefill_size": "chunk",
}
_VALUE_ALONE = {"attention_backend", "kv_cache_dtype", "moe_runner_backend", "quantization", "dtype"}


def cell_id(arguments: Mapping[str, ArgumentValue], named: Iterable[str]) -> str:
    """The id of a cell with these arguments, in which those ``named`` appear beside the speculative ones."""
    algorithm = arguments.get("speculative_algorithm")
    parts = ["nomtp" if algorithm is None else _safe(str(algorithm).lower())]
    parts += [f"{short}{arguments[name]}" for name, short in _SPECULATIVE.items() if name in arguments]
    parts += [
        _part(name, arguments[name])
        for name in named
        if name in arguments and name not in _SPECULATIVE and name != "speculative_algorithm"
    ]
    return "-".join(parts)


def _part(name: str, value: ArgumentValue) -> str:
    word = re.sub(r"^(enable_)", "", name).replace("_", "-")
    if value is True:
        return word
    if value is False:
        return f"no-{word}"
    shown = _number(value, 2 if name == "mem_fraction_static" else 0) if isinstance(value, float) else _safe(str(value))
    if name in _SHORT:
        return f"{_SHORT[name]}{shown}"
    return shown if name in _VALUE_ALONE else f"{word}-{shown}"


def _number(value: float, digits: int) -> str:
    """At least ``digits`` decimals, more where the value has them: 0.6 is 0.60, 0.645 stays."""
    exact = repr(value)
    padded = f"{value:.{digits}f}"
    return padded if float(padded) == value else exact


def _safe(text: str) -> str:
    """A path's last part; everything that a file name or a pattern would trip over becomes ``_``."""
    return re.sub(r"[^A-Za-z0-9.+]+", "_", text.rstrip("/").rsplit("/", 1)[-1]).strip("_") or "empty"
