"""The lines that mark SGLang's start-up phases, by generation of the log format (0.4.3 to 0.5.23).

A rule says which text begins or ends which phase; the numbers on the line are read in one way for all generations
(:mod:`mtpgate.server.phases`), because their order changed more often than their spelling. Rules are tried in order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from mtpgate.matrix.vocabulary import Phase

Edge = Literal["begin", "end"]
Target = Phase | Literal["load", "capture_target", "capture_draft"]
"""A phase, or a name that the tracker resolves: ``load`` is target or draft by its turn, ``capture_target`` decode or
verify by whether the launch speculates, draft decode if the draft is loaded already (0.4.3 has one text for all)."""


@dataclass(frozen=True)
class Rule:
    """A line whose text starts with ``pattern`` (after prefix and rank) is this edge of this phase."""

    pattern: re.Pattern[str]
    phase: Target
    edge: Edge


def _rule(pattern: str, phase: Target, edge: Edge) -> Rule:
    return Rule(re.compile(pattern), phase, edge)


START_RULES = (
    _rule(r"Init (?:torch distributed|parallel) begin\.", "dist_init", "begin"),
    _rule(r"Init (?:torch distributed|parallel) ends\.", "dist_init", "end"),
    # 0.5.23 with start-up overlap: the real weights come after the captures. It ends no phase of its own.
    _rule(r"Load weight begin\.", "load", "begin"),
    _rule(r"Load weight end\. (?!Committed)", "load", "end"),
    _rule(r"(?:[\w.-]+ )?KV Cache (?:is allocated|VA upper bound)", "kv_pool", "begin"),
    _rule(r"Mamba Cache is allocated\.", "kv_pool", "begin"),
    _rule(r"DSV4 memory calculation:", "kv_pool", "begin"),
    _rule(r"Memory pool end\.", "kv_pool", "end"),
)

OLD_CAPTURE_RULES = (  # 0.4.3 to 0.5.12
    _rule(r"Capture draft extend cuda graph begin", "capture_draft_extend", "begin"),
    _rule(r"Capture draft extend cuda graph end", "capture_draft_extend", "end"),
    _rule(r"Capture (?:Frozen-KV MTP )?draft cuda graph begin", "capture_draft", "begin"),
    _rule(r"Capture (?:Frozen-KV MTP )?draft cuda graph end", "capture_draft", "end"),
    _rule(r"Capture piecewise CUDA graph begin", "capture_prefill", "begin"),
    _rule(r"Capture piecewise CUDA graph end", "capture_prefill", "end"),
    _rule(r"Capture (?:cuda|CPU|cpu) graph begin", "capture_target", "begin"),
    _rule(r"Capture (?:cuda|CPU|cpu) graph end", "capture_target", "end"),
)

_GRAPH = r"(?:CUDA|CPU|NPU|XPU|\w+) graph"

NEW_CAPTURE_RULES = (  # by 0.5.15
    _rule(rf"Capture target prefill {_GRAPH} begin", "capture_prefill", "begin"),
    _rule(rf"Capture target prefill {_GRAPH} end", "capture_prefill", "end"),
    _rule(rf"Capture draft prefill {_GRAPH} begin", "capture_prefill", "begin"),
    _rule(rf"Capture draft prefill {_GRAPH} end", "capture_prefill", "end"),
    _rule(rf"Capture target decode {_GRAPH} begin", "capture_target_decode", "begin"),
    _rule(rf"Capture target decode {_GRAPH} end", "capture_target_decode", "end"),
    _rule(rf"Capture target verify {_GRAPH} begin", "capture_target_verify", "begin"),
    _rule(rf"Capture target verify {_GRAPH} end", "capture_target_verify", "end"),
    # 0.5.23 names the draft worker's own decode graph "draft verify"; its memory is booked as draft_decode.
    _rule(rf"Capture draft (?:decode|verify) {_GRAPH} begin", "capture_draft_decode", "begin"),
    _rule(rf"Capture draft (?:decode|verify) {_GRAPH} end", "capture_draft_decode", "end"),
    _rule(rf"Capture (?:draft extend {_GRAPH}|single-CG draft extend) begin", "capture_draft_extend", "begin"),
    _rule(rf"Capture (?:draft extend {_GRAPH}|single-CG draft extend) end", "capture_draft_extend", "end"),
)

FINISH_RULES = (
    _rule(r"max_total_num_tokens=\d", "warmup", "begin"),
    _rule(r"Engine startup timings", "warmup", "begin"),
    _rule(r"(?:INFO: +)?Started server process", "warmup", "begin"),
    _rule(r"(?:INFO: +)?Uvicorn running on ", "warmup", "begin"),
    _rule(r"The server is fired up and ready to roll!", "ready", "begin"),
)

RULES = START_RULES + OLD_CAPTURE_RULES + NEW_CAPTURE_RULES + FINISH_RULES

CANDIDATE = re.compile(
    r"Init (?:torch|par)|Load weight|KV Cache|Mamba Cache|DSV4 mem|Memory pool|Capture |max_total_num_tokens="
    r"|Engine startup|Started server|Uvicorn running|fired up|server_args="
)
"""What any rule's line contains: the cheap test that nearly all lines fail."""

_PHASE_LIKE = re.compile(
    r"^(?:[A-Z][\w-]* ){1,6}(?:begin|begins|end|ends|start|done|finished)\b[.: ]|\bavail mem=-?\d", re.ASCII
)
_KNOWN = re.compile(
    r"Capture cuda graph bs |Load weight end\. Committed|Post-capture KV sizing|Disable prefill CUDA graph|server_args="
    r"|Capture (?:[\w-]+ )*failed|INFO: "
)
"""Lines of the start-up that are known and begin or end no phase."""


def looks_like_phase(text: str) -> bool:
    """Whether ``text``, which no rule matched, reads like the begin or end of a start-up phase.

    A newer SGLang may have one that this table does not know; it is reported instead of ignored.
    """
    return len(text) < 2000 and _PHASE_LIKE.search(text) is not None and _KNOWN.match(text) is None
