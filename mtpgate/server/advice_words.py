"""The advice about memory in sentences: what to change, by which bound, and what it costs."""

from __future__ import annotations

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


def lower_for_request(facts: MemoryFacts, suggested: float, margin: float) -> str:
    """The fraction to try after a request of the running server, or the draft's load, ran out of memory."""
    missing = max((facts.tried or 0.0) - (facts.free or 0.0), 0.0)
    return (
        f"Lower {FRACTION}{since(facts)} to {suggested:.2f}: at least {missing:.2f} GiB were missing, and {margin:.0f} "
        "GiB more are kept as a margin."
    )


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
