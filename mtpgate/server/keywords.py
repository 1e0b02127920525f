"""What a line must contain to be looked at: expressions for RE2, from the tables of phases and causes."""

from __future__ import annotations

import re2

from mtpgate.server.causes import CAUSES, INTERESTING, OOM
from mtpgate.server.phase_table import CANDIDATE

MORE = (
    r"avail[ _]mem|Capturing |JIT Compiling|DeepGEMM warmup|Autotuning process starts|mem usage=|Post-capture|\[--[a-z]"
)
"""Progress bars of captures and compilers, lines that could be a phase of a newer SGLang, flags in argparse's usage."""

STACK = r"File [\"<]|hread 0x"
"""Frames of tracebacks and of crashes."""

KEYWORDS = f"{CANDIDATE.pattern}|{INTERESTING.pattern}|{MORE}|{STACK}"
"""For the scanner: all that any rule looks at."""

PHASE_LINE = re2.compile(f"{CANDIDATE.pattern}|{MORE}".encode())
"""A line that may tell of phases, memory or progress."""

_RULES = "|".join([OOM, *(cause.pattern.pattern for cause in CAUSES), "scheduler is dead"])

CAUSE_LINE = re2.compile(_RULES.replace("^", "").replace("$", "").encode())
"""A line that some rule about causes may match: RE2 needs one pass where the table needs thirty. The rules' anchors are
those of a record, which is a part of a line."""
