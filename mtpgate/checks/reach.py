"""What the answers of a cell could have shown at all: chunked prefill, batches in flight, the end of the graphs.

A green comparison means something only for what was reached. Nothing here fails a cell; what was not reached is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtpgate.checks.answers import Answers
from mtpgate.checks.compositions import MOST_AT_ONCE, Composition, graph_batch_limit
from mtpgate.checks.counts import count
from mtpgate.matrix.cell import Cell
from mtpgate.server.captures import expected_captures


@dataclass(frozen=True)
class Reach:
    """What was reached. Tokens of prompts are those that were computed, without those of the prefix cache."""

    longest_prefill: int | None
    """None where the server does not count the tokens of prompts."""
    chunked_prefill_size: int | None
    """None where the server does not tell it, or does not chunk."""
    chunked: int
    """Prompts that were longer than that."""
    in_flight: Mapping[str, int]
    """The most requests in flight, by composition."""
    notes: tuple[str, ...]
    """All that in words."""

    @property
    def chunks(self) -> bool:
        return self.chunked > 0


def reached(cell: Cell, info: Mapping[str, Any], asked: Sequence[Composition], answers: Mapping[str, Answers]) -> Reach:
    """What these ``answers``, by composition, could have shown; ``info`` is the cell's ``/server_info``."""
    lengths = {
        (answer.prompt_id, computed)
        for given in answers.values()
        for answer in given.answers.values()
        if (computed := _computed(answer.meta)) is not None
    }
    longest = max((length for _, length in lengths), default=None)
    size = info.get("chunked_prefill_size")
    size = size if isinstance(size, int) and size > 0 else None
    chunked = len({name for name, length in lengths if size is not None and length > size})
    in_flight = {name: given.in_flight for name, given in answers.items()}
    notes = (_of_chunks(longest, size, chunked, info), *_of_batches(asked, in_flight, info), *_of_graphs(cell, info))
    return Reach(longest, size, chunked, in_flight, notes)


def _computed(meta: Mapping[str, object]) -> int | None:
    tokens = count(meta, "prompt_tokens")
    return None if tokens is None else tokens - (count(meta, "cached_tokens") or 0)


def _of_chunks(longest: int | None, size: int | None, chunked: int, info: Mapping[str, Any]) -> str:
    if size is None:
        told = info.get("chunked_prefill_size")
        why = "the server does not tell its size" if told is None else f"chunked_prefill_size is {told}"
        return f"chunked prefill not seen: {why}"
    if longest is None:
        return "chunked prefill not seen: the server does not count the tokens of prompts"
    if not chunked:
        return f"chunked prefill not seen: the longest prompt has {longest} tokens, chunked_prefill_size is {size}"
    return f"{chunked} prompts were prefilled in chunks (up to {longest} tokens, chunked_prefill_size {size})"


def _of_batches(asked: Sequence[Composition], in_flight: Mapping[str, int], info: Mapping[str, Any]) -> Iterable[str]:
    together = [composition for composition in asked if composition.size > 1 and composition.name in in_flight]
    full = sorted({one.size for one in together if in_flight[one.name] >= one.size})
    if full:
        yield f"{', '.join(map(str, full))} requests were in flight together"
    for one in together:
        if in_flight[one.name] < one.size:
            yield f"{one.name}: only {in_flight[one.name]} of its {one.size} requests were in flight together"
    running = count(info, "max_running_requests")
    beyond = [one.name for one in together if running is not None and one.size > running]
    if beyond:
        yield f"{', '.join(beyond)}: the server runs {running} at once (max_running_requests), the others waited"


def _of_graphs(cell: Cell, info: Mapping[str, Any]) -> Iterable[str]:
    if not expected_captures(cell, info):
        yield "no graphs are captured, so there is no graph batch limit"
        return
    limit = graph_batch_limit(cell)
    if limit is None:
        told = info.get("cuda_graph_max_bs_decode") or info.get("cuda_graph_max_bs") or "not told"
        yield f"no batches around the graph batch limit: the matrix does not name it (cuda_graph_max_bs); it is {told}"
    elif limit + 1 > MOST_AT_ONCE:
        yield f"graph batch limit {limit}: batches above {MOST_AT_ONCE} are not asked for"
    else:
        yield f"batches around the graph batch limit of {limit}"
