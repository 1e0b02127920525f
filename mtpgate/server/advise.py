"""The smallest change that should fix a memory failure: direction, bound, a value with a margin, and what it costs."""

from __future__ import annotations

import math
from dataclasses import replace

from mtpgate.server import advice_words as words
from mtpgate.server.diagnosis import Advice
from mtpgate.server.levers import Scene, levers
from mtpgate.server.memory_facts import MemoryFacts

LEAST_MARGIN_GIB = 1.0
MARGIN_SHARE = 0.10
"""Of what the capture is known to need: the request that failed was not the last one, and ranks differ."""
DRAFT_MARGIN_GIB = 2.0
"""The draft's weights come tensor by tensor: the one that failed says little of the rest."""
POOL_MARGIN_GIB = 1.0
"""Above the smallest workable fraction, for a pool that serves more than one request."""
POOL_TOLERANCE_GIB = 0.5
"""What rounding to pages and small buffers may take from the pool that the fraction gives."""
MOST_FRACTION = 0.95
"""Beyond this nothing is left for activations: SGLang's own automatic value stays below it."""


def advise(scene: Scene, facts: MemoryFacts) -> Advice:
    """The advice for the failure of ``scene``; without memory figures it has a direction only."""
    if scene.kind == "oom_graph_capture":
        advice = _capture(scene, facts)
    elif scene.kind == "not_enough_memory" and facts.tried is None:
        advice = _pool(facts)
    elif scene.kind == "oom_draft_weights" and not scene.pool:
        advice = Advice(text=(words.two_models(),))
    elif scene.kind == "kv_pool_small":
        advice = _small_pool(facts)
    elif scene.kind in ("oom_serving", "oom_draft_weights", "not_enough_memory"):
        # A pool that was sized, and then could not be allocated, is too large and not too small.
        advice = _late(scene, facts)
    else:
        advice = Advice()
    other = levers(replace(scene, minimum=advice.min))
    return replace(advice, other=other, text=(*advice.text, *words.also(scene, advice.text, other)))


def _capture(scene: Scene, facts: MemoryFacts) -> Advice:
    largest, before = facts.largest(), facts.before
    # The decode batch limit does nothing for the prefill graphs.
    limit = None if scene.phase == "capture_prefill" else facts.smaller_batch()
    by_limit: dict[str, float | int] = {"cuda_graph_max_bs": limit} if limit else {}
    if largest is None or not before:
        return Advice("lower", graph_max_bs=limit, change=by_limit, text=words.without_load(facts))
    margin = max(LEAST_MARGIN_GIB, MARGIN_SHARE * (facts.need() or 0.0))
    advice = Advice("lower", max=round(largest, 3), margin_gib=round(margin, 2), graph_max_bs=limit)
    suggested = _within(largest, margin / before, facts.least())
    if suggested is None:
        text = (words.no_fraction(scene, largest, facts.least() or 0.0), *words.batch(scene, facts, limit))
        return replace(advice, mem_fraction_static="lower", change=by_limit, text=text)
    tokens, lost = facts.kv_left(suggested)
    starved = tokens is not None and any(load.kv_tokens > tokens for load in facts.loads)
    return replace(
        advice,
        suggested=suggested,
        kv_tokens=tokens,
        kv_tokens_lost=lost,
        change=by_limit if starved and by_limit else {"mem_fraction_static": suggested},
        text=(
            words.lower_for_capture(facts, largest, suggested, before),
            *words.kv_cost(facts, tokens, lost),
            *words.batch(scene, facts, limit),
        ),
    )


def _pool(facts: MemoryFacts) -> Advice:
    before = facts.before
    found = [value for value in (facts.least(), facts.stated_minimum) if value is not None]
    if not found or not before:
        return Advice("raise")
    least = math.ceil(max(found) * 1000 - 1e-6) / 1000
    suggested = math.ceil((least + POOL_MARGIN_GIB / before) * 100 - 1e-6) / 100
    if suggested > MOST_FRACTION:
        return Advice("raise", min=least, text=(words.weights_too_large(least),))
    return Advice(
        "raise",
        min=least,
        suggested=suggested,
        margin_gib=POOL_MARGIN_GIB,
        change={"mem_fraction_static": suggested},
        text=(words.raise_for_pool(facts, least, suggested, (suggested - max(found)) * before),),
    )


def _small_pool(facts: MemoryFacts) -> Advice:
    """A server that is ready with next to no pool: the fraction gave it no more, or SGLang sized it wrongly."""
    expected, rank, before = facts.expected_pool(), facts.rank, facts.before
    if expected is None or rank is None or not before or facts.fraction is None:
        return Advice(text=(words.pool_of_unknown_cause(),))
    pool = (rank.kv or 0.0) + (rank.draft_kv or 0.0)
    if expected > pool + max(POOL_TOLERANCE_GIB, 0.1 * expected):
        return Advice(text=(words.pool_sized_wrongly(facts, pool, expected),))
    tokens = max([load.kv_tokens for load in facts.loads] or [0])
    need = pool / rank.kv_tokens * tokens if rank.kv_tokens else POOL_MARGIN_GIB
    suggested = math.ceil((facts.fraction + (max(need, POOL_MARGIN_GIB) - pool) / before) * 100 - 1e-6) / 100
    if suggested > MOST_FRACTION:
        return Advice("raise", text=(words.weights_too_large(facts.fraction - pool / before),))
    change: dict[str, float | int] = {"mem_fraction_static": suggested}
    text = (words.raise_for_small_pool(facts, pool, suggested),)
    return Advice("raise", suggested=suggested, margin_gib=POOL_MARGIN_GIB, change=change, text=text)


def _late(scene: Scene, facts: MemoryFacts) -> Advice:
    """Out of memory in serving or in loading the draft: the failing request bounds what must be freed from below."""
    largest, before = facts.largest(), facts.before
    if facts.fraction is not None and before and facts.tried is not None and facts.free is not None:
        # The captures are over, or not yet begun: what counts is the fraction that was asked for.
        largest = facts.fraction - (facts.tried - facts.free) / before
    if largest is None or not before:
        return Advice("lower", text=words.without_load(facts))
    margin = DRAFT_MARGIN_GIB if scene.kind == "oom_draft_weights" else LEAST_MARGIN_GIB
    suggested = _down(largest - margin / before)
    least = facts.least()
    if least is not None and suggested < least:
        return Advice("lower", text=(words.no_fraction(scene, largest, least),))
    tokens, lost = facts.kv_left(suggested)
    return Advice(
        "lower",
        suggested=suggested,
        margin_gib=margin,
        kv_tokens=tokens,
        kv_tokens_lost=lost,
        change={"mem_fraction_static": suggested},
        text=(words.lower_for_request(scene, facts, suggested, margin), *words.kv_cost(facts, tokens, lost)),
    )


def _within(largest: float, margin: float, least: float | None) -> float | None:
    """A fraction below ``largest`` by ``margin``; with less margin where that would eat the pool, None if nothing is
    left between the bounds."""
    suggested = _down(largest - margin)
    if least is None or suggested > least:
        return suggested if suggested > 0 else None
    return _down(largest) if _down(largest) > least else None


def _down(fraction: float) -> float:
    """Rounded down at the second decimal, as people write fractions."""
    return math.floor(fraction * 100 + 1e-9) / 100
