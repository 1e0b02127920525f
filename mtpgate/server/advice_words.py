"""The advice about memory in sentences: what to change, by which bound, and what it costs."""

from __future__ import annotations

import math

from mtpgate.server.levers import Scene, graph_limit
from mtpgate.server.memory_facts import MemoryFacts

FRACTION = "--mem-fraction-static"


def lower_for_capture(facts: MemoryFacts, largest: float, suggested: float, before: float) -> str:
    """The fraction to try after a capture ran out of memory, with the sum that bounds it."""
    start = facts.rank.capture_start if facts.rank else None
    tried, free = facts.tried or 0.0, facts.free or 0.0
    how = "" if start is None else f" (1 - ({start:.2f} - {free:.2f} + {tried:.2f}) / {before:.2f}, GiB)"
    return (
        f"Lower {FRACTION}{since(facts)} to {suggested:.2f}: the largest that can work is {largest:.3f}{how}; "
        f"{(largest - suggested) * before:.1f} GiB are kept as a margin, because the capture had not come to its end."
    )


def lower_for_request(scene: Scene, facts: MemoryFacts, suggested: float, margin: float) -> str:
    """The fraction to try after a request of the running server, the pool or the draft's load ran out of memory."""
    tried, free = facts.tried or 0.0, facts.free or 0.0
    sized = "The pool was sized, and then could not be allocated. " if scene.phase == "kv_pool" else ""
    return (
        f"{sized}Lower {FRACTION}{since(facts)} to {suggested:.2f}: at least {max(tried - free, 0.0):.2f} GiB were "
        f"missing (tried {tried:.2f}, free {free:.2f}), and {margin:.0f} GiB more are kept as a margin."
    )


def without_load(facts: MemoryFacts) -> tuple[str, ...]:
    """When the failing request has numbers, and no line tells the memory before the load; empty without numbers."""
    if facts.tried is None or facts.free is None:
        return ()
    missing = max(facts.tried - facts.free, 0.0)
    near = ""
    if facts.total and facts.fraction is not None:
        value = math.floor((facts.fraction - (missing + 1.0) / facts.total) * 100) / 100
        near = f" By the GPU's size about {value:.2f} leaves 1 GiB more than that."
    return (
        f"Lower {FRACTION}{since(facts)}: at least {missing:.2f} GiB were missing; the log does not show the memory "
        f"before the load.{near}",
    )


def two_models() -> str:
    """When target and draft together are larger than the GPU, before any pool exists."""
    return (
        "The weights of target and draft do not fit together. No pool exists yet, so the fraction does not matter: use "
        "more GPUs (--tp-size), or a smaller or quantized form of one of them."
    )


def raise_for_small_pool(facts: MemoryFacts, pool: float, suggested: float) -> str:
    """The fraction to try where the pool is as small as the fraction made it."""
    return (
        f"Raise {FRACTION}{since(facts)} to {suggested:.2f}: after the weights the fraction leaves {pool:.2f} GiB for "
        "the pool, which is what it got."
    )


def pool_sized_wrongly(facts: MemoryFacts, pool: float, expected: float) -> str:
    """Where the fraction allows far more than the pool got."""
    tokens = f"{facts.budget.max_total_num_tokens or 0:,}"
    unused = min((rank.left for rank in facts.budget.ranks if rank.left is not None), default=0.0)
    return (
        f"{unused:.1f} GiB stay unused beside a pool of {tokens} tokens: by its own equation SGLang should give it "
        f"{expected:.1f} GiB, and gave {pool:.2f}. Another fraction does not change that. Try a newer SGLang."
    )


def pool_of_unknown_cause() -> str:
    """Where the log does not tell what the fraction allows."""
    return "The pool holds next to nothing; the log does not show whether the fraction or SGLang's sizing is the cause."


def raise_for_pool(facts: MemoryFacts, least: float, suggested: float, pool: float) -> str:
    """The fraction to try after the pool did not fit."""
    left = ""
    if facts.after_load is not None:
        left = f" ({facts.after_load:.2f} of {facts.before or 0.0:.2f} GiB are left after the load)"
    return (
        f"Raise {FRACTION}{since(facts)} to {suggested:.2f}: the smallest that can work is {least:.3f}{left}; "
        f"{suggested:.2f} gives the pool {pool:.1f} GiB."
    )


def weights_too_large(least: float) -> str:
    """When the pool would fit only beyond any sensible fraction."""
    return (
        f"The weights take {least:.3f} of the memory: a larger {FRACTION} leaves too little for graphs and "
        "activations. Use more GPUs (--tp-size) or a smaller form of the weights (--quantization)."
    )


def no_fraction(scene: Scene, largest: float, least: float) -> str:
    """When the bounds cross, and what else must give."""
    return (
        f"No fraction works: what failed needs {largest:.3f} or less, the weights alone more than {least:.3f}. "
        f"{_next_lever(scene)}"
    )


def kv_cost(facts: MemoryFacts, tokens: int | None, lost: int | None) -> tuple[str, ...]:
    """What the change costs in KV tokens, and whether the workloads still fit."""
    if tokens is None or lost is None:
        return ()
    sentences = [f"This costs {lost:,} of {tokens + lost:,} KV tokens; {tokens:,} are left."]
    if not lost:
        sentences = [f"This costs no KV tokens: the pool stays at {tokens:,}."]
    for verb, group in (
        ("still fits", [load for load in facts.loads if load.kv_tokens <= tokens]),
        ("DOES NOT FIT any more", [load for load in facts.loads if load.kv_tokens > tokens]),
    ):
        sizes = " and ".join(f"{load.concurrency} x {load.tokens:,} tokens" for load in group)
        sizes += "" if facts.asked else " (the suite's usual loads)"
        sentences += [f"KV for {sizes} {verb}."] if group else []
    return (" ".join(sentences),)


def batch(scene: Scene, facts: MemoryFacts, limit: int | None) -> tuple[str, ...]:
    """Whether a smaller graph batch limit alone could do, and which workloads would fall out of the graphs."""
    need, at = facts.need(), facts.largest_batch()
    start = facts.rank.capture_start if facts.rank else None
    if scene.phase == "capture_prefill" or need is None or at is None or start is None:
        return ()
    flag = graph_limit(scene.arguments)
    if limit is None:
        if facts.capturing not in (None, at):
            return (f"A smaller {flag} frees memory too; it failed at {facts.capturing}, after the larger ones.",)
        return (f"A smaller {flag} alone is not enough, by estimate.",)
    sentences = [
        f"Or lower {flag} alone to {limit}: at {at} the captures needed at least {need:.1f} of {start:.1f} GiB; if "
        f"that grows with the batch (an estimate), {limit} needs {need * limit / at:.1f}."
    ]
    covered = [load.name for load in facts.loads if load.concurrency <= limit]
    lost = [load.name for load in facts.loads if load.concurrency > limit]
    sentences += [f"{limit} still covers {' and '.join(covered)}."] if covered else []
    sentences += [f"{' and '.join(lost)} would fall out of the graphs and decode eagerly."] if lost else []
    return (" ".join(sentences),)


def also(scene: Scene, told: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """The knobs that no sentence named yet, with the value that is in question."""
    if not told:
        return ()
    named = " ".join(told)
    left = []
    for flag in other:
        if flag not in named:
            value = scene.arguments.get(flag.lstrip("-").replace("-", "_"))
            left.append(flag if value is None else f"{flag} (now {value})")
    return (f"Also in question: {', '.join(left)}.",) if left else ()


def since(facts: MemoryFacts) -> str:
    return f" from {facts.fraction:.2f}" if facts.fraction is not None else ""


def _next_lever(scene: Scene) -> str:
    new = bool(scene.arguments) and scene.arguments.knows("--cuda-graph-backend-prefill")
    prefill = "--cuda-graph-backend-prefill=disabled" if new else "--disable-piecewise-cuda-graph"
    first = {
        "capture_prefill": f"Leave the prefill graphs out ({prefill})",
        "capture_draft_extend": f"Leave graphs out of the draft, or lower {graph_limit(scene.arguments)}",
        "draft_load": "Use a smaller draft",
        "serving": "Allow fewer requests at once (--max-running-requests)",
    }.get(scene.phase, f"Lower {graph_limit(scene.arguments)}")
    return f"{first}, lower --chunked-prefill-size, or use more GPUs (--tp-size)."
