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
    r"|Failed to CUDA calloc|Triton Error \[CUDA\]: out of memory|[Cc]uda failure 2 'out of memory'"
    r"|(?:CUBLAS|CUDNN|CUSPARSE)_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation"
    r"|^(?:torch\.)?(?:cuda\.)?OutOfMemoryError"
)
"""The spellings by which a GPU's memory runs out, in Python, CUDA's libraries, NCCL and Triton."""

_ARCHITECTURE = r"(?:SM|sm_?|compute capability |Hopper|Blackwell|Ampere|Ada)"
KERNEL = (
    r"no kernel image is available|invalid device function|Value 'sm_\w+' is not defined|PTXASError"
    r"|bin/ptxas .*returned non-zero exit status"
    r"|[Uu]nsupported (?:SM |GPU |gpu |CUDA |compute |device )?(?:architecture|arch\b|capability)|[Uu]nknown SM arch"
    rf"|not supported (?:on|for) (?:this|your|the current|{_ARCHITECTURE})"
    rf"|(?:[Rr]equires?|only (?:supports?|supported (?:on|for)|available (?:on|for)|works on)) {_ARCHITECTURE}"
    r"|out of resource: shared memory|OutOfResources|does not support multicasting"
)
"""A kernel that was not built for this GPU, or asks more of it than it has."""

CAUSES = (
    _cause(r"[\w.]+: error: (?:unrecognized arguments|argument |ambiguous option|the following arg)", "bad_argument"),
    _cause(
        r"is not a local folder and is not a valid model identifier|have a file named config\.json|Repo id must be"
        r"|Incorrect path_or_model_id",
        "bad_argument",
    ),
    _cause(r"is not divisible by|invalid device ordinal|Consider reducing tensor_parallel_size", "bad_argument"),
    # What the rendezvous itself logs; the rank that raised says more.
    _cause(r"socket\.cpp.*address already in use", "port_in_use", NOTICE),
    _cause(
        r"address already in use|[Pp]ort (?:\d{1,5} )?is already in use|EADDRINUSE|at \d{1,5} is not available in \d",
        "port_in_use",
    ),
    _cause(r"Loaded weights leave no GPU memory", "not_enough_memory", phase="kv_pool"),
    _cause(r"Not enough memory\. Please try to increase", "not_enough_memory", phase="kv_pool"),
    # With the check switched off the same text is a warning, and the start goes on.
    _cause(r"^(?:Value|Runtime)Error: .*memory capacity is unbalanced", "gpu_occupied", phase="dist_init"),
    _cause(
        r"invalid argument$|CUDART error|peer access|invalid device context",
        "custom_all_reduce",
        frame=r"custom_all_?reduce|cuda_wrapper",
    ),
    _cause(r"custom_all_?reduce.*(?:invalid argument|CUDA error|[Ff]ailed)", "custom_all_reduce"),
    _cause(KERNEL, "kernel_unsupported"),
    _cause(
        r"an illegal memory access was encountered|misaligned address|unspecified launch failure"
        r"|device-side assert triggered",
        "illegal_memory_access",
    ),
    # The rank that raises it, not one that only logs it.
    _cause(r"^ValueError: .*NaN in the logits|tensor contains either `inf`, `nan`", "nan_logits"),
    _cause(r"NaN in the logits", "nan_logits", NOTICE),
    _cause(
        r"(?:Prefill|Decode) out of memory\.|alloc_req_slots runs out of memory|Out of memory even after ret",
        "kv_exhausted",
    ),
    _cause(r"[Ww]atchdog timeout \(self\.watchdog_timeout=[\d.]+(?:, self\.soft=False)?\)", "watchdog"),
    _cause(
        r"Watchdog caught collective operation timeout|DistStoreError: Timed out|DistNetworkError: .*timed out"
        r"|wait timeout after \d+ ?ms|Timed out waiting \d+ ?ms|Socket Timeout|Timeout at NCCL work"
        r"|\(either an error or timeout\) detected by watchdog",
        "collective_timeout",
    ),
    # A target that is loaded as its own draft, because no draft was named, or one that knows nothing of EAGLE.
    _cause(r"has no attribute '(?:hot_token_id|set_embed\w*)'", "bad_argument", phase="draft_load"),
    _cause(r"has no attribute '(?:set_eagle3_layers_to_capture|get_embed_and_head)'", "bad_argument"),
    _cause(
        r"oom-kill:|invoked oom-killer|Memory cgroup out of memory|Out of memory: Killed process"
        r"|node running low on memory|\[Errno 12\] Cannot allocate memory|^MemoryError\b"
        # A compiler that was killed: each of its many processes takes gigabytes.
        r"|^FAILED: \[code=137\]|Killed signal terminated program|^Killed$",
        "host_oom_killed",
    ),
    _cause(
        r"scheduler died during initialization \(exit code: -9\)|^Exit code: -9$|line \d+: +\d+ Killed\b"
        r"|crashed with exit code -9\b",
        "host_oom_killed",
        NOTICE,
    ),
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

DEATH_WORDS = (
    r"Traceback|\wError|\wException|\wExit\b|\wInterrupt\b|Exception: |hit an exception|igquit|SIGQUIT|died|is dead"
)
"""What a line about the end contains that no cause names: the begin and the end of tracebacks, notices of a death."""
