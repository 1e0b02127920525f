"""How a diagnosis is worded, and the numbers that it shows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mtpgate.matrix.vocabulary import Kind, Phase
from mtpgate.server.budget import Budget
from mtpgate.server.diagnosis import Advice
from mtpgate.server.records import records

EVIDENCE_CHARACTERS = 500

FRAME_PLACE = re.compile(r'File "(?:[^"]*/)?([^"/]+/[^"/]+|[^"/]+)", line (\d{1,7})')
BAR = re.compile(r".{0,300}\[[\d:?]{2,9}<[^\]]{1,40}(?:it/s|s/it)[^\]]{0,40}\]")

_SIZE = r"(\d{1,15}(?:\.\d{1,6})?) ?(KiB|MiB|GiB|bytes)"
NUMBERS = (
    ("tried", re.compile(rf"[Tt]r(?:ied|ying) to allocate {_SIZE}")),
    ("total", re.compile(rf"total capacity of {_SIZE}|; {_SIZE} total capacity|, total: (\d{{1,15}})()\)")),
    ("free", re.compile(rf"of which {_SIZE} is free|; {_SIZE} free|\(free: (\d{{1,15}})(), total")),
    ("in_use", re.compile(rf"(?:this process|Process \d{{1,9}}) has {_SIZE} memory in use")),
)
GIB = {"KiB": 1 / 1024**2, "MiB": 1 / 1024, "GiB": 1.0, "bytes": 1 / 1024**3, "": 1 / 1024**3}


def numbers(text: str) -> dict[str, float]:
    """What an out-of-memory text says, GiB: ``tried``, ``free``, ``total``, ``in_use``, each only if it is there."""
    found: dict[str, float] = {}
    for name, pattern in NUMBERS:
        match = pattern.search(text)
        if match:
            value, unit = [group for group in match.groups() if group is not None][:2]
            found[name] = round(float(value) * GIB[unit], 3)
    return found


def all_numbers(failing: Mapping[str, float], budget: Budget, rank: str | None) -> dict[str, object]:
    """What the log shows, GiB and tokens: the failing request, then the budget of the rank that failed."""
    found: dict[str, object] = dict(failing)
    told = budget.rank(rank)
    if told is not None:
        memory = (
            ("avail_before_load", told.before_load),
            ("weights", told.weights),
            ("draft_weights", told.draft_weights),
            ("kv", told.kv),
            ("avail_capture_start", told.capture_start),
        )
        found.update({name: round(value, 3) for name, value in memory if value is not None})
        if told.kv_tokens:
            found["kv_tokens"] = told.kv_tokens
        if told.graphs:
            found["graphs"] = {name.removeprefix("capture_"): round(size, 3) for name, size in told.graphs.items()}
    if budget.max_total_num_tokens is not None:
        found["max_total_num_tokens"] = budget.max_total_num_tokens
    return found


_SENTENCE: Mapping[Kind, str] = {
    "ok": "the server got ready",
    "oom_weights": "the weights do not fit on the GPU",
    "oom_draft_weights": "no GPU memory was left for the draft model's weights",
    "not_enough_memory": "no memory was left for the KV pool",
    "oom_graph_capture": "GPU out of memory while graphs were captured",
    "oom_serving": "GPU out of memory while serving",
    "kv_pool_small": "the server got ready, with a KV pool too small to serve",
    "kv_exhausted": "the KV pool was exhausted while serving; the GPU's own memory was not",
    "kernel_unsupported": "a kernel is not available for this GPU; this has nothing to do with memory",
    "custom_all_reduce": "the custom all-reduce failed",
    "collective_timeout": "a collective operation timed out: some rank never came to it",
    "illegal_memory_access": "a CUDA kernel accessed memory that is not its own",
    "host_oom_killed": "the host ran out of memory, and its kernel killed a process",
    "child_died": "a process of the server died",
    "port_in_use": "the port is in use",
    "bad_argument": "SGLang refused its arguments",
    "gpu_occupied": "a GPU is occupied by another process",
    "draft_checkpoint": "the draft model's checkpoint cannot be loaded",
    "nan_logits": "the model computed NaN",
    "watchdog": "SGLang's watchdog ended a scheduler that was stuck",
    "hang": "nothing more happened",
    "slow_compile": "kernels were still being compiled when the time was over",
    "unknown": "it failed for a reason that this suite does not know",
}

_HINT: Mapping[Kind, str] = {
    "oom_weights": "The weights alone are larger than the GPU: more GPUs for them (--tp-size), or a quantized form.",
    "kernel_unsupported": "Choose a backend that supports this GPU, or install kernels that are built for it "
    "(sm_120 needs CUDA 12.8 or newer). A hint of SGLang's below it does not apply: it prints it for every cause.",
    "custom_all_reduce": "Start with --disable-custom-all-reduce, or without expandable segments in "
    "PYTORCH_CUDA_ALLOC_CONF: their addresses cannot be shared between processes.",
    "illegal_memory_access": "Find the kernel (CUDA_LAUNCH_BLOCKING=1 names it), and the batch size that does it.",
    "host_oom_killed": "More host memory, or a higher limit of the container; `dmesg -T | grep -i oom` shows what was "
    "killed.",
    "gpu_occupied": "Free that GPU, or leave it out with CUDA_VISIBLE_DEVICES.",
    "draft_checkpoint": "Check the path and the files of --speculative-draft-model-path, and that it is a draft for "
    "this target.",
    "nan_logits": "Look for the layer or the quantization that makes it; try without the prefix cache.",
    "watchdog": "Find what the rank waits for (py-spy dump); a longer watchdog only delays the end.",
    "slow_compile": "Keep the compiler's cache from launch to launch, or allow more time.",
    "port_in_use": "Choose a free port, or end what listens there.",
    "kv_exhausted": "Allow fewer requests at once (--max-running-requests), or a more careful schedule.",
    "collective_timeout": "Look at the rank that did not come: its node, its disk, its own log.",
}


def hints(kind: Kind, phase: Phase, advice: Advice) -> tuple[str, ...]:
    """What to do about a failure for which no number can be given."""
    if kind in _LOWER and not advice.text:
        words = "Lower --mem-fraction-static; the log has no numbers to compute by how much."
        return (words, f"Or: {', '.join(advice.other)}.") if advice.other else (words,)
    if kind == "not_enough_memory" and not advice.text:
        return ("Raise --mem-fraction-static; the log has no numbers to compute by how much.",)
    if kind == "hang" and phase.startswith("capture_"):
        return ("A capture that stands still waits for another rank or for a driver: look at the stacks of all ranks.",)
    for named, flag, words in _HINT_WITH:
        if kind == named and flag in advice.other:
            return (words,)
    if kind in ("child_died", "bad_argument", "hang") and advice.other:
        return (f"Look at {', '.join(advice.other)}.",)
    return (_HINT[kind],) if kind in _HINT else ()


_LOWER = ("oom_graph_capture", "oom_serving", "oom_draft_weights")
_HINT_WITH = (
    (
        "slow_compile",
        "SGLANG_DG_CACHE_DIR",
        "Compile DeepGEMM before (python -m sglang.compile_deep_gemm) and keep its cache, or allow more time.",
    ),
    (
        "host_oom_killed",
        "MAX_JOBS",
        "Compilers ran out of host memory: fewer of them at once (MAX_JOBS), or keep their cache.",
    ),
    (
        "host_oom_killed",
        "--model-loader-extra-config",
        "More host memory, or a higher limit of the container. Fewer loader threads hold fewer shards in host memory "
        "(--model-loader-extra-config). `dmesg -T | grep -i oom` shows what was killed.",
    ),
)


def raised_in(frames: Sequence[str]) -> tuple[str, ...]:
    """Where an exception that no rule knows was raised: the innermost frame, and its line of code."""
    places = [place for place, frame in enumerate(frames) if FRAME_PLACE.search(frame)]
    if not places:
        return ()
    match = FRAME_PLACE.search(frames[places[-1]])
    code = frames[places[-1] + 1].strip() if places[-1] + 1 < len(frames) else ""
    where = f"{match[1]}:{match[2]}" if match else ""
    return (f"Raised in {where}{f' ({code})' if code else ''}; nothing in the log says that it has to do with memory.",)


def summary(phase: Phase, kind: Kind, rank: str | None, text: str, advice: Advice) -> str:
    """One sentence for a person; ``text`` is the line of the log that shows it."""
    where = f"{phase} on {rank}" if rank else phase
    sentence = _SENTENCE[kind]
    if kind == "not_enough_memory" and advice.mem_fraction_static == "lower":
        sentence = "the KV pool was sized and could not be allocated"
    if advice.text and advice.text[0].startswith("No fraction works"):
        sentence += ": no memory fraction works" + (f", see {', '.join(advice.other)}" if advice.other else "")
    elif advice.mem_fraction_static:
        to = f" to {advice.suggested:.2f}" if advice.suggested is not None else ""
        bound = f" (at most {advice.max:.3f})" if advice.max is not None else ""
        bound = f" (at least {advice.min:.3f})" if advice.min is not None else bound
        sentence += f": {advice.mem_fraction_static} --mem-fraction-static{to}{bound}"
    elif advice.other:
        sentence += f": see {', '.join(advice.other)}"
    return f"{where}: {sentence}" + ("" if kind == "ok" else f" ({clean(text)[:200]})")


def clean(text: str) -> str:
    """The last record of a line, without colours and control characters, cut to a readable length."""
    parts = [record.text for record in records(text) if record.text.strip()]
    last = parts[-1].strip() if parts else ""
    bar = BAR.match(last)
    # What follows a progress bar on its line is what matters, if anything does.
    return (last[bar.end() :].strip() or last if bar else last)[:EVIDENCE_CHARACTERS]
