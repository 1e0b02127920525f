"""What a line must contain to be looked at: expressions for RE2, from the tables of phases and causes."""

from __future__ import annotations

import re2

from mtpgate.server.causes import CAUSES, DEATH_WORDS, OOM
from mtpgate.server.phase_table import CANDIDATE

COMPILING = (
    r"DeepGEMM warmup|JIT Compiling|Autotuning process starts|AUTOTUNE |Compiling num tokens|Building JIT"
    r"|\[\d+/\d+\] \S*(?:nvcc|c\+\+|g\+\+|clang)"
)
"""A compiler at work: DeepGEMM, FlashInfer's and Triton's tuners, inductor, ninja."""

MORE = rf"avail[ _]mem|Capturing |{COMPILING}|mem usage=|Post-capture|\[--[a-z]|set --cuda-graph-max-bs"
"""Progress bars, lines that could be a phase of a newer SGLang, flags in argparse's usage, SGLang's own hint."""

STACK = r"File [\"<]|hread 0x|assert .*% .*tp_size"
"""Frames of tracebacks and of crashes, and the one line of code that says more than its bare exception."""

_CAUSES = "|".join([OOM, *(cause.pattern.pattern for cause in CAUSES), "scheduler is dead"])
# The rules' anchors are those of a record, which is a part of a line.
_CAUSES = _CAUSES.replace("^", "").replace("$", "")

KEYWORDS = f"{CANDIDATE.pattern}|{MORE}|{STACK}|{_CAUSES}|{DEATH_WORDS}"
"""For the scanner: all that any rule looks at."""

PHASE_LINE = re2.compile(f"{CANDIDATE.pattern}|{MORE}".encode())
"""A line that may tell of phases, memory or progress."""

CAUSE_LINE = re2.compile(_CAUSES.encode())
"""A line that some rule about causes may match: RE2 needs one pass where the table needs thirty."""
