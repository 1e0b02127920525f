"""The texts by which a launch dies, and what kind of failure each is.

``weight`` decides between several findings in one log: a cause beats the notice that something died, and the notice of
a bystander (a rank whose peer vanished) is worth least. Among equals the first in the log wins. SGLang prints its hint
("Possible solutions: set --mem-fraction-static to a smaller value") below every failed capture, whatever the cause: no
rule looks at it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mtpgate.matrix.vocabulary import Kind, Phase

CAUSE, EXCEPTION, NOTICE, BYSTANDER = 4, 3, 2, 1


@dataclass(frozen=True)
class Cause:
    """A line that contains ``pattern`` shows ``kind``; ``phase`` where the text itself says it."""

    pattern: re.Pattern[str]
    kind: Kind
    weight: int = CAUSE
    phase: Phase | None = None
    frame: re.Pattern[str] | None = None
    """Also needed: a frame of the same traceback that contains this."""


def _cause(
    pattern: str, kind: Kind, weight: int = CAUSE, *, phase: Phase | None = None, frame: str | None = None
) -> Cause:
    return Cause(re.compile(pattern), kind, weight, phase, re.compile(frame) if frame else None)


NOT_FATAL = re.compile(r"Skipping tactic|CUDACachingAllocator|Ignore import error")
"""Lines that look like a death and are none: a tuner that tries, an allocator that will try again."""

OOM = (
    r"(?:OutOfMemoryError: |Capture [\w ]+ failed: |^RuntimeError: )CUDA out of memory"
    r"|(?:AcceleratorError|RuntimeError|failed): CUDA error: out of memory"
    r"|(?:OutOfMemoryError|RuntimeError): .*memory allocation failed with OOM"
    r"|Failed to CUDA calloc|Triton Error \[CUDA\]: out of memory"
    r"|^(?:torch\.)?(?:cuda\.)?OutOfMemoryError"
)

CAUSES = (
    _cause(r"[\w.]+: error: (?:unrecognized arguments|argument |ambiguous option|the following arg)", "bad_argument"),
    _cause(r"address already in use|Port is already in use", "port_in_use"),
    _cause(r"Loaded weights leave no GPU memory", "not_enough_memory", phase="kv_pool"),
    _cause(r"Not enough memory\. Please try to increase", "not_enough_memory", phase="kv_pool"),
    _cause(r"memory capacity is unbalanced", "gpu_occupied", phase="dist_init"),
    _cause(
        r"no kernel image is available|Unsupported architecture|not supported on (?:this|sm_?\d+)", "kernel_unsupported"
    ),
    _cause(r"out of resource: shared memory|OutOfResources", "kernel_unsupported"),
    _cause(r"invalid argument$", "custom_all_reduce", frame=r"custom_all_?reduce"),
    _cause(r"custom_all_?reduce.*(?:invalid argument|CUDA error|failed)", "custom_all_reduce"),
    _cause(r"an illegal memory access was encountered", "illegal_memory_access"),
    # The rank that raises it, not one that only logs it.
    _cause(r"^ValueError: .*NaN in the logits", "nan_logits"),
    _cause(r"NaN in the logits", "nan_logits", NOTICE),
    _cause(
        r"(?:Prefill|Decode) out of memory\.|alloc_req_slots runs out of memory|Out of memory even after ret",
        "kv_exhausted",
    ),
    _cause(r"(?:[Ww]atchdog timeout) \(self\.watchdog_timeout", "watchdog"),
    _cause(r"Watchdog caught collective operation timeout|DistStoreError: Timed out", "collective_timeout"),
    _cause(r"has no attribute 'hot_token_id'", "bad_argument", phase="draft_load"),
    _cause(
        r"oom-kill:|invoked oom-killer|Memory cgroup out of memory|Out of memory: Killed process", "host_oom_killed"
    ),
    _cause(r"scheduler died during initialization \(exit code: -9\)|^Exit code: -9$", "host_oom_killed", NOTICE),
    _cause(r"scheduler died during initialization|^Exit code: -?\d+$", "child_died", NOTICE),
    _cause(r"Fatal Python error|crashed with exit code", "child_died", NOTICE),
    _cause(
        r"Connection closed by peer|Connection reset by peer|^(?:EOF|BrokenPipe|ConnectionReset)Error\b"
        r"|worker exited during startup",
        "child_died",
        BYSTANDER,
    ),
)

OOM_PATTERN = re.compile(OOM)

EXCEPTION_LINE = re.compile(
    r"^(?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|OutOfResources)?\b(?:: |$)"
)
"""The last line of a traceback: ``ValueError: ...`` or a bare ``AssertionError``."""

TRACEBACK = re.compile(r"hit an exception: Traceback|^Traceback \(most recent call last\)")

INTERESTING = re.compile(
    r"Traceback|\wError|rror:|out of memory|OOM|oom|Not enough memory|Killed|dead|died|crashed|[Ww]atchdog"
    r"|already in use|unbalanced|no kernel|Unsupported|not supported|NaN|illegal|Exit code|closed by peer|reset by peer"
    r"|sigquit|QUIT|no attribute|calloc|Exception|invalid argument|out of resource|custom_all|leave no GPU"
)
"""What any line that matters contains: the cheap test that nearly all lines fail."""
