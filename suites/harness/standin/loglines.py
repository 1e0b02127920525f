"""What SGLang writes while it starts, phase by phase, in the format of a chosen version.

Texts and orders follow the real server's log (``recorded/``) for 0.5.23 on the CPU and the collected formats for the rest.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

GIB = 94.97


@dataclass(frozen=True)
class Launch:
    """What the lines depend on."""

    version: tuple[int, ...]
    gpu: bool
    ranks: tuple[str, ...]
    """Printed prefixes of the schedulers; ``("",)`` with one rank."""
    speculative: bool
    num_steps: int
    server_args: str
    host: str
    port: int


def log(text: str, rank: str = "") -> None:
    """One logging record on stderr, as SGLang's formatter writes it."""
    now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
    print(f"[{now}{' ' + rank if rank else ''}] {text}", file=sys.stderr, flush=True)


def bar(text: str) -> None:
    """A progress bar's state: no line end."""
    print(f"\r{text}", end="", file=sys.stderr, flush=True)


Step = tuple[str, Callable[[], None]]
"""A phase and what is printed when it begins or ends."""


def script(launch: Launch) -> Iterator[Step]:
    """The phases of one start-up in order, each as (phase, print its begin) and (phase + "/end", print its end)."""
    new = launch.version >= (0, 5, 15)

    def each(text: str) -> Callable[[], None]:
        return lambda: [log(text, rank) for rank in launch.ranks] and None

    begin, end = (
        ("parallel", "parallel") if launch.version >= (0, 5, 23) else ("torch distributed", "torch distributed")
    )
    yield "preflight", lambda: log(f"server_args={launch.server_args}")
    yield "dist_init", each(f"Init {begin} begin.")
    tail = "elapsed=0.31 s, mem usage=1.43 GB" if launch.version >= (0, 5, 9) else "mem usage=1.43 GB"
    yield (
        "dist_init/end",
        each(f"Init {end} ends. elapsed=0.31 s" if launch.version >= (0, 5, 23) else f"Init {end} ends. {tail}"),
    )
    yield from _load(launch, each, "weight_load", "StandInForCausalLM", 94.17, 43.62)
    if new and launch.speculative:
        yield from _load(launch, each, "draft_load", "StandInMTP", 50.55, 1.83)
    yield from _pool(launch, each, 28.85)
    if new and launch.speculative:
        yield from _pool(launch, each, 28.26)
    if launch.gpu:
        yield from _target_captures(launch, each)
    if not new and launch.speculative:
        yield from _load(launch, each, "draft_load", "StandInMTP", 25.0, 1.83)
        yield from _pool(launch, each, 22.0)
    if launch.gpu and launch.speculative:
        yield from _draft_captures(launch, each)
    memory = "available_gpu_mem" if launch.gpu else "available_cpu_mem"
    ready = (
        "max_total_num_tokens=65536, chunked_prefill_size=2048, max_prefill_tokens=16384, max_running_requests=48, "
        f"context_len=4096, {memory}=11.20 GB"
    )
    yield "warmup", lambda: log(ready, launch.ranks[0])
    if launch.version >= (0, 5, 23):
        yield (
            "warmup/more",
            lambda: log(
                "Engine startup timings (s): load_weight=0.05, kv_cache_allocation=0.01, scheduler_e2e=0.20, cuda_graph="
                "{prefill=0.00, decode=0.00, target_verify=0.00, draft_prefill=0.00, draft_decode=0.00, draft_extend=0.00}"
                ", tokenizer_e2e=0.30"
            ),
        )


def _load(
    launch: Launch, each: Callable[[str], Callable[[], None]], phase: str, kind: str, avail: float, size: float
) -> Iterator[Step]:
    yield phase, each(f"Load weight begin. avail mem={avail:.2f} GB")
    yield (
        phase + "/more",
        lambda: bar("Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00, 42.0it/s]\n"),
    )
    elapsed = "elapsed=0.05 s, " if launch.version >= (0, 5, 9) else ""
    dtype = "" if launch.version >= (0, 5, 12) else "dtype=torch.bfloat16, "
    usage = f", mem usage={size:.2f} GB." if launch.version >= (0, 4, 6) else ""
    yield phase + "/end", each(f"Load weight end. {elapsed}type={kind}, {dtype}avail mem={avail - size:.2f} GB{usage}")


def _pool(launch: Launch, each: Callable[[str], Callable[[], None]], after: float) -> Iterator[Step]:
    dtype = "dtype: torch.bfloat16, " if launch.version >= (0, 5, 15) else ""
    tokens = "#tokens: 65536, " if launch.version >= (0, 4, 6) else ""
    yield "kv_pool", each(f"KV Cache is allocated. {dtype}{tokens}K size: 10.22 GB, V size: 10.22 GB")
    yield "kv_pool/end", each(f"Memory pool end. avail mem={after:.2f} GB")


def _capture(
    launch: Launch, each: Callable[[str], Callable[[], None]], phase: str, old: str, new: str, avail: float
) -> Iterator[Step]:
    if launch.version >= (0, 5, 15):
        yield (
            phase,
            each(
                f"Capture {new} CUDA graph begin. backend=full, num_tokens_per_req=2, bs=[1, 2, 4, 8], avail mem={avail:.2f} GB"
            ),
        )
    elif launch.version >= (0, 4, 6):
        yield (
            phase,
            each(f"Capture {old}cuda graph begin. This can take up to several minutes. avail mem={avail:.2f} GB"),
        )
    else:
        yield phase, each("Capture cuda graph begin. This can take up to several minutes.")
    yield (
        phase + "/more",
        lambda: bar(f"Capturing batches (bs=8 avail_mem={avail:.2f} GB):   0%|          | 0/4 [00:00<?, ?it/s]"),
    )
    yield (
        phase + "/more",
        lambda: bar(
            f"Capturing batches (bs=1 avail_mem={avail - 1:.2f} GB): 100%|##########| 4/4 [00:00<00:00, 9.1it/s]\n"
        ),
    )
    if launch.version >= (0, 5, 15):
        yield (
            phase + "/end",
            each(f"Capture {new} CUDA graph end. elapsed=0.20 s, mem usage=1.10 GB, avail mem={avail - 1.1:.2f} GB."),
        )
    elif launch.version >= (0, 4, 6):
        yield (
            phase + "/end",
            each(
                f"Capture {old}cuda graph end. Time elapsed: 0.20 s. mem usage=1.10 GB. avail mem={avail - 1.1:.2f} GB."
            ),
        )
    else:
        yield phase + "/end", each("Capture cuda graph end. Time elapsed: 0.20 s")


def _target_captures(launch: Launch, each: Callable[[str], Callable[[], None]]) -> Iterator[Step]:
    if launch.version >= (0, 5, 15):
        yield from _capture(launch, each, "capture_prefill", "", "target prefill", 28.2)
    phase, name = (
        ("capture_target_verify", "target verify") if launch.speculative else ("capture_target_decode", "target decode")
    )
    yield from _capture(launch, each, phase, "", name, 27.0)


def _draft_captures(launch: Launch, each: Callable[[str], Callable[[], None]]) -> Iterator[Step]:
    if launch.num_steps > 1 or launch.version < (0, 5, 6):
        yield from _capture(launch, each, "capture_draft_decode", "draft ", "draft decode", 20.0)
    if launch.version >= (0, 4, 9):
        yield from _capture(launch, each, "capture_draft_extend", "draft extend ", "draft extend", 18.0)
