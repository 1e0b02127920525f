"""What SGLang writes while it starts, phase by phase, in the format of a chosen version.

For 0.5.23 on the CPU the lines are those of the real server (``recorded/``, compared in a test); for older versions and
for the captures of a GPU they follow the formats that were collected from the published wheels.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memory import Arithmetic

Write = Callable[[], None]
Step = tuple[str, Write]
"""A phase and what is printed then: ``phase`` begins it, ``phase/more`` is in it, ``phase/end`` ends it."""


@dataclass(frozen=True)
class Launch:
    """What the lines depend on."""

    version: tuple[int, ...]
    gpu: bool
    ranks: tuple[str, ...]
    """Printed prefixes of the schedulers; ``("",)`` with one rank."""
    speculative: bool
    num_steps: int
    arguments: dict[str, object]
    host: str
    port: int
    memory: Arithmetic | None = None
    """The GPU's memory, where its numbers matter."""

    def since(self, *version: int) -> bool:
        return self.version >= version


def log(text: str, rank: str = "") -> None:
    """One logging record on stderr, as SGLang's formatter writes it."""
    now = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
    print(f"[{now}{' ' + rank if rank else ''}] {text}", file=sys.stderr, flush=True)


def bar(*states: str) -> Write:
    """A progress bar: a carriage return stands before each of its states."""
    return lambda: print("\r" + "\r".join(states), file=sys.stderr, flush=True)


class Script:
    """The start-up of one launch."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.new = launch.since(0, 5, 15)

    def each(self, text: str) -> Write:
        """``text`` from every rank."""

        def write() -> None:
            for rank in self.launch.ranks:
                log(text, rank)

        return write

    def steps(self) -> Iterator[Step]:
        launch = self.launch
        yield "preflight", self.server_args
        yield from self.dist_init()
        if launch.memory is not None:
            yield from self.reckoned(launch.memory)
            return
        yield from self.load("weight_load", "MiMoForCausalLM", 94.17, 43.62)
        # By 0.5.15 the draft is loaded before the pool is sized, earlier after the target's captures.
        if self.new and launch.speculative:
            yield from self.load("draft_load", "MiMoMTP", 50.55, 1.83)
        yield from self.pool(28.85)
        if self.new and launch.speculative:
            yield from self.pool(28.26)
        if launch.gpu:
            yield from self.target_captures()
        if not self.new and launch.speculative:
            yield from self.load("draft_load", "MiMoMTP", 25.0, 1.83)
            yield from self.pool(22.0)
        if launch.gpu and launch.speculative:
            yield from self.draft_captures()
        yield from self.warmup()

    def reckoned(self, memory: Arithmetic) -> Iterator[Step]:
        """From the load to the warm-up, with the numbers of a pretended GPU."""
        size = memory.memory
        yield from self.load("weight_load", "MiMoForCausalLM", size.available, size.weights)
        if self.launch.speculative:
            yield from self.load("draft_load", "MiMoMTP", size.available - size.weights, size.draft_weights)
        target = memory.pool - memory.draft_pool
        yield from self.pool(memory.rest + memory.draft_pool, target, memory.tokens)
        if self.launch.speculative:
            yield from self.pool(memory.rest, memory.draft_pool, memory.tokens)
        yield from self.target_captures()
        if self.launch.speculative:
            yield from self.draft_captures()
        yield from self.warmup()

    def server_args(self) -> None:
        arguments = self.launch.arguments
        listed = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        log(f"server_args={arguments!r}" if self.launch.since(0, 5, 23) else f"server_args=ServerArgs({listed})")

    def dist_init(self) -> Iterator[Step]:
        if self.launch.since(0, 5, 23):
            yield "dist_init", self.each("Init parallel begin.")
            yield "dist_init/end", self.each("Init parallel ends. elapsed=0.02 s")
        else:
            elapsed = "elapsed=0.31 s, " if self.launch.since(0, 5, 9) else ""
            yield "dist_init", self.each("Init torch distributed begin.")
            yield "dist_init/end", self.each(f"Init torch distributed ends. {elapsed}mem usage=1.43 GB")

    def load(self, phase: str, kind: str, available: float, size: float) -> Iterator[Step]:
        elapsed = "elapsed=0.05 s, " if self.launch.since(0, 5, 9) else ""
        dtype = "" if self.launch.since(0, 5, 10) else "dtype=torch.bfloat16, "
        usage = f", mem usage={size:.2f} GB." if self.launch.since(0, 4, 6) else ""
        shards = "Multi-thread loading shards"
        yield phase, self.each(f"Load weight begin. avail mem={available:.2f} GB")
        yield (
            f"{phase}/more",
            bar(
                f"{shards}:   0% Completed | 0/1 [00:00<?, ?it/s]",
                f"{shards}: 100% Completed | 1/1 [00:00<00:00, 100.23it/s]",
            ),
        )
        yield (
            f"{phase}/end",
            self.each(f"Load weight end. {elapsed}type={kind}, {dtype}avail mem={available - size:.2f} GB{usage}"),
        )

    def pool(self, after: float, size: float = 20.44, held: int = 65536) -> Iterator[Step]:
        dtype = "dtype: torch.float32, " if self.launch.since(0, 5, 15) else ""
        tokens = f"#tokens: {held}, " if self.launch.since(0, 4, 6) else ""
        sizes = f"K size: {size / 2:.2f} GB, V size: {size / 2:.2f} GB"
        yield "kv_pool", self.each(f"KV Cache is allocated. {dtype}{tokens}{sizes}")
        yield "kv_pool/end", self.each(f"Memory pool end. avail mem={after:.2f} GB")

    def target_captures(self) -> Iterator[Step]:
        if self.new:
            yield from self.capture("capture_prefill", "target prefill", 28.2)
        if self.launch.speculative:
            yield from self.capture("capture_target_verify", "target verify", 27.0)
        else:
            yield from self.capture("capture_target_decode", "target decode", 27.0)

    def draft_captures(self) -> Iterator[Step]:
        if self.launch.num_steps > 1 or not self.launch.since(0, 5, 6):
            yield from self.capture("capture_draft_decode", "draft decode", 20.0)
        if self.launch.since(0, 4, 9):
            yield from self.capture("capture_draft_extend", "draft extend", 18.0)

    def capture(self, phase: str, name: str, before: float) -> Iterator[Step]:
        used, tokens, sizes = 1.1, 2, (1, 2, 4, 8)
        if (memory := self.launch.memory) is not None:
            used, before, tokens, sizes = memory.needed(phase), memory.free, memory.tokens_of(phase), memory.sizes
        after = f"avail mem={before - used:.2f} GB."
        # Up to 0.5.12 the text does not say what the target's graph is for; 0.4.3 does not even tell target from draft.
        old = {"draft decode": "draft ", "draft extend": "draft extend "}.get(name, "")
        if self.new:
            key = "num_tokens_per_req" if self.launch.since(0, 5, 17) else "num_tokens_per_bs"
            shape = f"{key}={tokens}, bs={list(sizes)}"
            begin = f"Capture {name} CUDA graph begin. backend=full, {shape}, avail mem={before:.2f} GB"
            end = f"Capture {name} CUDA graph end. elapsed=0.20 s, mem usage={used:.2f} GB, {after}"
        elif self.launch.since(0, 4, 6):
            minutes = "This can take up to several minutes."
            begin = f"Capture {old}cuda graph begin. {minutes} avail mem={before:.2f} GB"
            end = f"Capture {old}cuda graph end. Time elapsed: 0.20 s. mem usage=1.10 GB. {after}"
        else:
            begin = "Capture cuda graph begin. This can take up to several minutes."
            end = "Capture cuda graph end. Time elapsed: 0.20 s"
        yield phase, self.each(begin)
        first = f"Capturing batches (bs={sizes[-1]} avail_mem={before:.2f} GB):   0%|          | 0/4 [00:00<?, ?it/s]"
        last = f"Capturing batches (bs=1 avail_mem={before - 1:.2f} GB): 100%|##########| 4/4 [00:00<00:00, 9.1it/s]"
        # The largest graph comes first, and is the one that there may be no room for.
        short = memory is not None and memory.shortage(phase) is not None
        yield f"{phase}/more", bar(*([first] if short else [first, last]))
        if memory is not None:
            memory.free -= used
        yield f"{phase}/end", self.each(end)

    def warmup(self) -> Iterator[Step]:
        memory = "available_gpu_mem" if self.launch.gpu else "available_cpu_mem"
        reckoned = self.launch.memory
        left, tokens = (reckoned.free, reckoned.tokens) if reckoned is not None else (11.2, 65536)
        last = f", {memory}={left:.2f} GB" if self.launch.since(0, 4, 9) else ""
        line = (
            f"max_total_num_tokens={tokens}, chunked_prefill_size=4096, max_prefill_tokens=16384, "
            f"max_running_requests=48, context_len=2048{last}"
        )
        yield "warmup", lambda: log(line, self.launch.ranks[0])
        if self.launch.since(0, 5, 23):
            graphs = "prefill=0.00, decode=0.00, target_verify=0.00, draft_prefill=0.00, draft_decode=0.00"
            timings = (
                "Engine startup timings (s): load_weight=0.04, kv_cache_allocation=0.67, scheduler_e2e=2.28, "
                f"cuda_graph={{{graphs}, draft_extend=0.00}}, tokenizer_e2e=13.65"
            )
            yield "warmup/more", lambda: log(timings)
