"""What else to change, and what not: by the kind of failure and where it happened.

Only flags that the SGLang which wrote the log has are named (:meth:`LoggedArguments.knows`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mtpgate.matrix.vocabulary import Kind, Phase
from mtpgate.server.arguments import LoggedArguments

LOWER, RAISE = "lower mem_fraction_static", "raise mem_fraction_static"
LOWER_GRAPHS = "lower cuda_graph_max_bs"
NO_GRAPHS = "disable cuda graph"
LONGER_WAIT = "raise the start time-out"

FLAG = re.compile(r"--[a-z][a-z0-9-]{2,60}")
MODEL_PATH = re.compile(r"local folder|config\.json|Repo id must be|Incorrect path_or_model_id")
TP_SIZE = re.compile(r"is not divisible by|invalid device ordinal|tensor_parallel_size|tp_size")
FIELDS = tuple(
    f"--{name}"
    for name in (
        *(
            "context-length",
            "dp-size",
            "page-size",
            "chunked-prefill-size",
            "mem-fraction-static",
            "max-running-requests",
        ),
        *("mem-fraction-static", "enable-dp-attention", "enable-dp-lm-head", "attention-backend", "moe-runner-backend"),
        *("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens", "speculative-algorithm"),
    )
)
"""What the checks of ServerArgs are mostly about, for a failure before the arguments were logged."""

LONG_CONTEXT_TOKENS = 131_072
"""From here on buffers that are sized by the context length (index logits, page tables) count in a capture."""
MANY_DRAFT_TOKENS = 16
"""num_draft_tokens * batch is the batch of the verify graph: beyond this the draft tree is the cheaper thing to cut."""
TIGHT_FRACTION = 0.85
"""A pool that only fits above this leaves too little for graphs and activations: the model is too big for the GPUs."""


@dataclass(frozen=True)
class Scene:
    """What the levers depend on."""

    kind: Kind
    phase: Phase
    arguments: LoggedArguments
    frames: Sequence[str] = ()
    """The frames of the traceback that decided."""
    text: str = ""
    """The line that decided."""
    usage: Sequence[str] = ()
    """The flags that argparse lists in its usage."""
    draft_tokens: int = 0
    topk: int = 0
    pool: bool = True
    """Whether the KV pool was there already on the rank that failed."""
    minimum: float | None = None
    """The smallest workable fraction, where the pool does not fit."""

    def passed(self, pattern: str) -> bool:
        """Whether a frame, or the line that decided, contains ``pattern``."""
        found = re.compile(pattern, re.IGNORECASE)
        return any(found.search(frame) for frame in (*self.frames, self.text))


def graph_limit(arguments: LoggedArguments) -> str:
    """The flag for the graph batch limit: renamed by 0.5.15, the old one gone in 0.5.23."""
    new, old = "--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"
    return new if arguments.has(new) or (arguments.newer and not arguments.has(old)) else old


def levers(scene: Scene) -> tuple[str, ...]:
    """Knobs that are right to change besides the memory fraction."""
    named = _MEMORY.get(scene.kind, _OTHER.get(scene.kind, _nothing))(scene)
    if scene.kind == "bad_argument":
        return named  # What was refused was typed by a person, or is what should have been.
    return tuple(flag for flag in named if not flag.startswith("--") or scene.arguments.knows(flag))


def not_levers(scene: Scene) -> tuple[str, ...]:
    """What a hasty reader (or SGLang's own hint) would say, and what is wrong here."""
    if scene.phase == "capture_prefill" and scene.kind == "oom_graph_capture":
        return (RAISE, LOWER_GRAPHS)
    if scene.kind == "not_enough_memory" and "out of memory" in scene.text:
        return (RAISE, LOWER_GRAPHS)
    if scene.kind == "oom_draft_weights" and not scene.pool:
        return _NOT["oom_weights"]
    if scene.kind in _NOT:
        return _NOT[scene.kind]
    return (LOWER, RAISE, *((LOWER_GRAPHS, NO_GRAPHS) if scene.phase.startswith("capture_") else ()))


def _nothing(_: Scene) -> tuple[str, ...]:
    return ()


def _capture(scene: Scene) -> tuple[str, ...]:
    if scene.phase == "capture_prefill":
        new = ("--cuda-graph-backend-prefill", "--cuda-graph-max-bs-prefill")
        if scene.arguments.knows(new[0]):
            return new
        return ("--disable-piecewise-cuda-graph", "--piecewise-cuda-graph-max-tokens")
    found = [graph_limit(scene.arguments)]
    if scene.draft_tokens >= MANY_DRAFT_TOKENS:
        found.append("--speculative-num-draft-tokens")
        if scene.topk > 1:
            found.append("--speculative-eagle-topk")
    if (scene.arguments.number("context_length") or 0) >= LONG_CONTEXT_TOKENS:
        found.append("--context-length")
    return tuple(found)


def _serving(scene: Scene) -> tuple[str, ...]:
    decoding = scene.passed(r"forward_decode|cuda_graph_runner|replay")
    return ("--max-running-requests",) if decoding else ("--chunked-prefill-size",)


def _pool(scene: Scene) -> tuple[str, ...]:
    return ("--tp-size", "--quantization") if (scene.minimum or 0.0) > TIGHT_FRACTION else ()


DSA = ("--dsa-prefill-backend", "--dsa-decode-backend")


def _kernel(scene: Scene) -> tuple[str, ...]:
    draft = scene.phase.startswith("capture_draft")
    attention = (*(("--speculative-draft-attention-backend",) if draft else ()), "--attention-backend")
    rules = (
        (r"multicast|comm_fusion|mnnvl", ("--enable-flashinfer-allreduce-fusion",)),
        (
            r"indexer|mqa_logits|dsa_|nsa_|deepgemm\S*attention",
            ("--dsa-prefill-backend", "--dsa-decode-backend", *attention),
        ),
        (r"deep_?gemm|grouped_gemm", ("--moe-runner-backend", "--fp8-gemm-backend")),
        (r"moe", ("--moe-runner-backend",)),
        (r"fp8|scaled_mm|gemm|cutlass", ("--fp8-gemm-backend", "--fp4-gemm-backend")),
        (r"attention|flashinfer|flash_?mla|fa3|triton_ops|trtllm|shared memory|mla", attention),
    )
    return next((flags for pattern, flags in rules if scene.passed(pattern)), ())


def _crash(scene: Scene) -> tuple[str, ...]:
    return ("--attention-backend",) if scene.passed(r"attention|flashinfer|flash_attn|flashmla") else ()


def _illegal(scene: Scene) -> tuple[str, ...]:
    replay = scene.passed(r"cuda_graph_runner|replay|full_cuda_graph")
    new = ("--cuda-graph-backend-decode", "--cuda-graph-bs-decode")
    if scene.arguments and scene.arguments.knows(new[0]):
        return new
    return ("--disable-cuda-graph", "--cuda-graph-bs") if replay else ("--attention-backend",)


def _timeout(scene: Scene) -> tuple[str, ...]:
    if scene.phase == "dist_init":
        return ("--dist-init-addr", "--nnodes", "--node-rank", "--dist-timeout")
    return ()


def _argument(scene: Scene) -> tuple[str, ...]:
    if scene.phase == "draft_load":
        return ("--speculative-draft-model-path",)
    if MODEL_PATH.search(scene.text):
        return ("--model-path",)
    if TP_SIZE.search(scene.text) or _is_divided(scene):
        return ("--tp-size", *(("--quantization",) if "quantization" in scene.text else ()))
    if not FLAG.search(scene.text):
        # The checks of ServerArgs name its fields.
        words = dict.fromkeys(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", scene.text))
        flags = tuple(f"--{word.replace('_', '-')}" for word in words)
        return tuple(flag for flag in flags if scene.arguments.has(flag) or flag in FIELDS)[:4]
    wrong, _, candidates = scene.text.partition("could match")
    if candidates:  # argparse names what an ambiguous option could stand for.
        return tuple(dict.fromkeys(FLAG.findall(candidates)))[:4]
    named = dict.fromkeys(FLAG.findall(wrong))
    usage = list(scene.usage)
    near: list[list[str]] = [difflib.get_close_matches(flag, usage, 1, 0.8) or [flag] for flag in list(named)[:4]]
    return tuple(flags[0] for flags in near)


def _is_divided(scene: Scene) -> bool:
    """Whether a bare assertion is about what the tensor-parallel size must divide."""
    return any("tp_size" in line and "%" in line for line in scene.frames[-2:])


def _host(scene: Scene) -> tuple[str, ...]:
    if re.search(r"FAILED: \[code=137\]|Killed", scene.text) and "oom" not in scene.text:
        return ("MAX_JOBS",)
    # Several loader threads, each with a shard in host memory, are the default somewhere between 0.5.4 and 0.5.9.
    threads = any(
        scene.arguments.knows(flag) for flag in ("--piecewise-cuda-graph-max-tokens", "--cuda-graph-max-bs-decode")
    )
    loads = scene.phase in ("weight_load", "draft_load") and bool(scene.arguments) and threads
    return ("--model-loader-extra-config",) if loads else ()


def _port(scene: Scene) -> tuple[str, ...]:
    if "dist_init_port=" in scene.text:
        return ("--dist-init-addr", "--port")
    if re.search(r"DistNetworkError|TCPStore|c10d|socket\.cpp|server socket", scene.text):
        several = (scene.arguments.number("nnodes") or 1) > 1 or scene.arguments.get("dist_init_addr")
        return ("--dist-init-addr",) if several else ("--nccl-port", "--dist-init-addr")
    return ("--port",)


def _draft_weights(scene: Scene) -> tuple[str, ...]:
    if scene.pool:
        return ("--max-total-tokens",)
    return ("--tp-size", "--quantization", "--speculative-draft-model-quantization")


def _kv_exhausted(scene: Scene) -> tuple[str, ...]:
    if "alloc_req_slots" in scene.text:
        return ("--max-running-requests",)  # Slots of requests, not tokens of the pool.
    return ("--page-size", "--max-running-requests", "--schedule-conservativeness")


def _compile(scene: Scene) -> tuple[str, ...]:
    if re.search(r"AUTOTUNE|inductor|Compiling num tokens", scene.text):
        return ("TORCHINDUCTOR_CACHE_DIR", "--enable-torch-compile")
    if re.search(r"\[\d+/\d+\]|Building JIT|Autotuning", scene.text):
        return ("FLASHINFER_WORKSPACE_BASE", "MAX_JOBS")
    return ("SGLANG_DG_CACHE_DIR",)


def _hang(scene: Scene) -> tuple[str, ...]:
    if scene.phase.startswith("capture_"):
        return ("--disable-custom-all-reduce", graph_limit(scene.arguments))
    return ("--dist-init-addr", "--dist-timeout") if scene.phase == "dist_init" else ()


_MEMORY: Mapping[Kind, Callable[[Scene], tuple[str, ...]]] = {
    "oom_graph_capture": _capture,
    "oom_serving": _serving,
    "not_enough_memory": _pool,
    "oom_weights": lambda _: ("--tp-size", "--quantization"),
    "oom_draft_weights": _draft_weights,
}
_OTHER: Mapping[Kind, Callable[[Scene], tuple[str, ...]]] = {
    "gpu_occupied": lambda _: ("CUDA_VISIBLE_DEVICES",),
    "host_oom_killed": _host,
    "child_died": _crash,
    "kernel_unsupported": _kernel,
    "custom_all_reduce": lambda _: ("--disable-custom-all-reduce", "PYTORCH_CUDA_ALLOC_CONF"),
    "illegal_memory_access": _illegal,
    "kv_exhausted": _kv_exhausted,
    "nan_logits": lambda _: ("--disable-radix-cache", "--fp4-gemm-backend"),
    "collective_timeout": _timeout,
    "hang": _hang,
    "slow_compile": _compile,
    "port_in_use": _port,
    "draft_checkpoint": lambda _: ("--speculative-draft-model-path",),
    "bad_argument": _argument,
    "unknown": lambda scene: ("--tp-size",) if _is_divided(scene) else (),
}

_NOT: Mapping[Kind, tuple[str, ...]] = {
    "oom_graph_capture": (RAISE, f"{NO_GRAPHS} as first choice"),
    "oom_draft_weights": (RAISE, LOWER_GRAPHS),
    "oom_serving": (RAISE, NO_GRAPHS),
    "oom_weights": (LOWER, RAISE, LOWER_GRAPHS),
    "not_enough_memory": (LOWER, LOWER_GRAPHS),
    "gpu_occupied": (LOWER, "switch the check off (SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK)"),
    "hang": (LOWER, RAISE, LONGER_WAIT),
    "port_in_use": (LOWER, RAISE, LONGER_WAIT),
    "ok": (LOWER, RAISE, LOWER_GRAPHS),
}
