"""Whether the server runs what was asked for: neutral knobs against what ``/server_info`` reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtpgate.matrix.cell import ArgumentValue

RENAMED: Mapping[str, tuple[str, ...]] = {
    # Asked for under the left name, reported under one of the right ones by some version.
    "cuda_graph_max_bs": ("cuda_graph_max_bs_decode", "cuda_graph_max_bs"),
    "tp": ("tp_size",),
    "dp": ("dp_size",),
    "ep": ("ep_size",),
    "pp": ("pp_size",),
}

EQUIVALENT: Mapping[str, frozenset[str]] = {
    # SGLang turns NEXTN into EAGLE and reports the latter.
    "speculative_algorithm": frozenset({"NEXTN", "EAGLE"}),
}


@dataclass(frozen=True)
class Difference:
    """An argument that the server reports otherwise than it was asked for."""

    name: str
    asked: ArgumentValue
    got: Any
    """What the server reports; None also when it does not report the argument at all (then ``reported`` is False)."""
    reported: bool = True

    def __str__(self) -> str:
        if not self.reported:
            return f"{self.name}: asked for {self.asked!r}, not reported by /server_info"
        return f"{self.name}: asked for {self.asked!r}, the server runs {self.got!r}"


def compare_with_server_info(arguments: Mapping[str, ArgumentValue], info: Mapping[str, Any]) -> list[Difference]:
    """The arguments whose value is not the one asked for, by name.

    ``auto`` asks for nothing. Numbers are equal within 1e-6, relative. What SGLang silently rewrites
    (``num_draft_tokens`` at topk 1) *is* a difference: the launch is then not the cell that the matrix says it is.
    """
    differences = []
    for name, asked in sorted(arguments.items()):
        if asked == "auto":
            continue
        found = [key for key in (name, *RENAMED.get(name, ())) if key in info]
        if not found:
            differences.append(Difference(name, asked, None, reported=False))
        elif not any(_same(name, asked, info[key]) for key in found):
            differences.append(Difference(name, asked, info[found[0]]))
    return differences


def _same(name: str, asked: ArgumentValue, got: Any) -> bool:
    if isinstance(asked, bool) or isinstance(got, bool):
        # False leaves the flag out; an optional that was not given is reported as null.
        return bool(asked) is bool(got)
    if isinstance(asked, int | float) and isinstance(got, int | float):
        return math.isclose(asked, got, rel_tol=1e-6)
    group = EQUIVALENT.get(name, frozenset())
    return str(asked) == str(got) or (str(asked).upper() in group and str(got).upper() in group)
