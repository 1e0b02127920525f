"""Will a cell fit? Predicted from what healthy launches of other cells left in their logs; never a reason to skip it.

With B the memory that was available before the weights were loaded and f the memory fraction, SGLang gives the KV pool
``available_after_load - B * (1 - f)`` (``srt/model_executor/pool_configurator.py``; from 0.5.15 on the draft's weights
are loaded before that and counted). What remains, about ``B * (1 - f)``, must hold the graphs and all that the log does
not name (activations, workspaces, communication).

Taken from the closest known launch (the same kind of speculation first, then draft tokens, steps, fraction):

- weights as they are: the cells of a matrix serve one model. The draft's are known only from a launch that had one.
- the pool by the equation above, the draft's share of it as in the known launch, both capped by ``max_total_tokens``.
- the graphs of a phase from the closest launch that captured it, in proportion to the largest batch size times the
  tokens of a request in it (verify and draft extend: num_draft_tokens; draft decode: topk; else 1); prefill graphs as
  they are. A capture's passing peak is not in a healthy log, so a forecast can only be too kind there.
- ``other`` as measured.

All sizes are GiB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from mtpgate.matrix.cell import ArgumentValue, Cell, Speculation
from mtpgate.matrix.vocabulary import Phase
from mtpgate.server.budget import Budget, RankBudget

CLOSE = 0.01
"""Of the memory before the load: a smaller remainder is too close to call. Logs round to 0.01 GiB, and the available
memory of one GPU differs by some hundred MiB from launch to launch."""

SAME = ("tp_size", "dp_size", "pp_size", "ep_size", "enable_dp_attention", "dtype", "quantization", "kv_cache_dtype")
"""Launches that differ in one of these say nothing of each other's memory."""

CAPTURES: tuple[Phase, ...] = tuple(phase for phase in get_args(Phase) if phase.startswith("capture_"))


@dataclass(frozen=True)
class KnownLaunch:
    """A launch that got ready, and where its memory went."""

    cell: Cell
    budget: Budget

    @property
    def ranks(self) -> tuple[RankBudget, ...]:
        return tuple(rank for rank in self.budget.ranks if rank.before_load is not None and rank.weights is not None)


@dataclass(frozen=True)
class Forecast:
    """What is expected of a cell on the GPU that will have the least left."""

    from_cell: str
    fits: bool | None
    """None: something that it needs is not known, or it is too close to call."""
    predicted: Mapping[str, float] = field(default_factory=dict)
    """By the names of :meth:`mtpgate.server.budget.RankBudget.segments`; without what is not known."""
    left_gib: float | None = None
    """Negative: so much too little. Without what is not known, so at most this."""
    text: str = ""


def forecast(cell: Cell, known: Sequence[KnownLaunch]) -> Forecast | None:
    """What ``known`` launches say of ``cell``; None if there is none to learn from."""
    usable = [launch for launch in known if launch.ranks and _comparable(launch.cell, cell)]
    if not usable:
        return None
    by_distance = sorted(usable, key=lambda launch: _distance(launch, cell))
    fraction = _number(cell.arguments.get("mem_fraction_static"))
    assumed = []
    if fraction is None:
        fraction = by_distance[0].budget.fraction
        assumed.append("the same memory fraction")
    if fraction is None:
        text = f"by {by_distance[0].cell.id}: unknown, neither names a memory fraction"
        return Forecast(by_distance[0].cell.id, None, text=text)
    predictions = [_Prediction(cell, by_distance, rank, fraction) for rank in by_distance[0].ranks]
    worst = min(predictions, key=lambda item: item.left)
    return worst.forecast(assumed)


class _Prediction:
    """The memory of one rank."""

    def __init__(self, cell: Cell, known: Sequence[KnownLaunch], rank: RankBudget, fraction: float) -> None:
        self.cell = cell
        self.known = known
        self.rank = rank
        self.unknown: list[str] = []
        self.notes: list[str] = []
        self.segments: dict[str, float] = {"weights": rank.weights or 0.0}
        self.before = rank.before_load or 0.0
        self.pool = self._static(fraction)
        self._graphs()
        self.segments["other"] = dict(rank.segments()).get("other", 0.0)
        self.left = self.before - sum(self.segments.values())

    def _static(self, fraction: float) -> float:
        """The draft's weights and the pools; returns what the equation gives to the pools."""
        nearest = self.known[0]
        counted = nearest.budget.draft_counted
        draft = self._draft_weights() if self.cell.speculation else 0.0
        # The pool of all ranks is what the one with the least memory can hold.
        room = min(
            (rank.before_load or 0.0) * fraction - (rank.weights or 0.0) - (draft if counted else 0.0)
            for rank in nearest.ranks
        )
        if draft:
            self.segments["draft_weights"] = draft
        state = self.rank.state_cache or 0.0
        if state:
            self.segments["state_cache"] = state
        kv, draft_kv = self._pools(max(room - state, 0.0), counted)
        self.segments["kv"] = kv
        if draft_kv:
            self.segments["draft_kv"] = draft_kv
        return room

    def _draft_weights(self) -> float:
        for launch in self.known:
            for rank in (self._same_rank(launch), *launch.ranks):
                if rank is not None and rank.draft_weights:
                    return rank.draft_weights
        self.unknown.append("the draft's weights: no launch with a draft is known")
        return 0.0

    def _pools(self, room: float, counted: bool) -> tuple[float, float]:
        share = 0.0
        if self.cell.speculation:
            measured = next((r for launch in self.known for r in launch.ranks if r.kv and r.draft_kv), None)
            if measured is not None:
                share = (measured.draft_kv or 0.0) / (measured.kv or 1.0)
        # Where the draft is not counted its pool is taken on top of the target's.
        kv = room / (1 + share) if counted else room
        limit = _number(self.cell.arguments.get("max_total_tokens"))
        per_token = self._bytes_per_token()
        if limit is not None and per_token is not None:
            kv = min(kv, limit * per_token)
            self.notes.append(f"max_total_tokens={limit:g}")
        elif limit is None and self.known[0].cell.arguments.get("max_total_tokens") is not None:
            self.notes.append("the pool by the fraction alone")
        return kv, kv * share

    def _bytes_per_token(self) -> float | None:
        """GiB of one token in the target's pool."""
        measured = next((r for launch in self.known for r in launch.ranks if r.kv and r.kv_tokens), None)
        return None if measured is None else (measured.kv or 0.0) / (measured.kv_tokens or 1)

    def _graphs(self) -> None:
        if self.cell.arguments.get("disable_cuda_graph") is True:
            return
        for phase in self._phases():
            source = next((launch for launch in self.known if self._captured(launch, phase)), None)
            scale = 1.0
            if source is None and phase == "capture_target_verify":
                # The same forward pass as a decode graph's, over more tokens.
                source = next((item for item in self.known if self._captured(item, "capture_target_decode")), None)
                measured = self._captured(source, "capture_target_decode") if source else None
                taken_from: Phase = "capture_target_decode"
            else:
                measured, taken_from = self._captured(source, phase) if source else None, phase
            if source is None or measured is None:
                self.unknown.append(f"the graphs of {phase}: no known launch captured them")
                continue
            if phase != "capture_prefill":
                scale = self._tokens_captured(phase) / _tokens_of(source, taken_from)
            self.segments[phase] = measured * scale

    def _phases(self) -> tuple[Phase, ...]:
        """The captures of the cell: as known where a launch of its kind was seen, else those that it must have."""
        kind = self.cell.speculation is not None
        alike = [launch for launch in self.known if (launch.cell.speculation is not None) == kind]
        captured_any = any(rank.graphs for launch in self.known for rank in launch.ranks)
        if not captured_any:
            return ()
        steps = self.cell.speculation.num_steps if self.cell.speculation else 0
        found = {phase for launch in (alike or self.known) for rank in launch.ranks for phase in rank.graphs}
        wanted: set[Phase] = {"capture_target_verify"} if kind else {"capture_target_decode"}
        if steps > 1:
            wanted.add("capture_draft_decode")
        others: set[Phase] = {"capture_prefill", "capture_draft_extend"} if kind else {"capture_prefill"}
        return tuple(phase for phase in CAPTURES if phase in wanted or (phase in others and phase in found))

    def _captured(self, launch: KnownLaunch, phase: Phase) -> float | None:
        rank = self._same_rank(launch)
        if rank is not None and rank.graphs.get(phase):
            return rank.graphs[phase]
        return next((item.graphs[phase] for item in launch.ranks if item.graphs.get(phase)), None)

    def _same_rank(self, launch: KnownLaunch) -> RankBudget | None:
        return next((rank for rank in launch.ranks if rank.rank == self.rank.rank), None)

    def _tokens_captured(self, phase: Phase) -> float:
        limit = _number(self.cell.arguments.get("cuda_graph_max_bs"))
        if limit is None:
            limit = _batch_of(self.known[0], phase)
            self.notes.append("the same graph batch limit")
        return limit * tokens_per_request(phase, self.cell.speculation)

    def forecast(self, assumed: Sequence[str]) -> Forecast:
        source = self.known[0].cell.id
        left = round(self.left, 2)
        enough = self.pool > 0 and left >= 0
        close = abs(left) < CLOSE * self.before and self.pool > 0
        fits: bool | None = enough
        if close or (enough and self.unknown):
            fits = None
        verdict = {True: "fits", False: "does not fit", None: "too close to call" if close else "unknown"}[fits]
        if self.pool <= 0:
            why = f"no room for a KV pool: the fraction leaves {self.pool:.2f} GiB for it"
        else:
            why = f"{left:.2f} of {self.before:.2f} GiB left" + (", at most" if self.unknown else "")
        parts = ", ".join(f"{name} {size:.2f}" for name, size in self.segments.items())
        text = f"by {source}: {verdict}, {why} ({parts})"
        notes = list(dict.fromkeys([*assumed, *self.notes]))
        text += f"; assumed: {', '.join(notes)}" if notes else ""
        text += f"; not known: {'; '.join(self.unknown)}" if self.unknown else ""
        predicted = {name: round(size, 2) for name, size in self.segments.items()}
        return Forecast(source, fits, {**predicted, "left": left}, left, text)


def tokens_per_request(phase: Phase, speculation: Speculation | None) -> int:
    """Tokens of one request in a graph of ``phase`` (``num_tokens_per_req`` of the capture lines, 0.5.17 and later)."""
    if speculation is None:
        return 1
    return {
        "capture_target_verify": speculation.num_draft_tokens,
        "capture_draft_extend": speculation.num_draft_tokens,
        "capture_draft_decode": speculation.eagle_topk,
    }.get(phase, 1)


def compare(prediction: Forecast, measured: Budget) -> tuple[tuple[str, float | None, float | None], ...]:
    """``(segment, predicted, measured)`` of the rank with the least left, GiB; None where one side lacks it."""
    ranks = [rank for rank in measured.ranks if rank.segments()]
    if not ranks:
        return ()
    least = min(ranks, key=lambda rank: dict(rank.segments())["left"])
    found = dict(least.segments())
    names = [name for name in found if name not in ("other", "left")]
    names += [name for name in prediction.predicted if name not in (*names, "other", "left")]
    return tuple((name, prediction.predicted.get(name), found.get(name)) for name in [*names, "other", "left"])


def _comparable(known: Cell, cell: Cell) -> bool:
    return all(known.arguments.get(name) == cell.arguments.get(name) for name in SAME)


def _distance(launch: KnownLaunch, cell: Cell) -> tuple[float, ...]:
    """Smaller is closer; among equals the earlier launch."""
    mine, theirs = cell.speculation, launch.cell.speculation
    fraction, limit = (
        abs((_number(launch.cell.arguments.get(name)) or 0.0) - (_number(cell.arguments.get(name)) or 0.0))
        for name in ("mem_fraction_static", "cuda_graph_max_bs")
    )
    if mine is None or theirs is None:
        return (float((mine is None) != (theirs is None)), 0, 0, fraction, limit)
    return (
        0,
        abs(mine.num_draft_tokens - theirs.num_draft_tokens) + abs(mine.eagle_topk - theirs.eagle_topk),
        abs(mine.num_steps - theirs.num_steps),
        fraction,
        limit,
    )


def _batch_of(launch: KnownLaunch, phase: Phase) -> float:
    sizes = launch.budget.graph_batch_sizes.get(phase, ())
    return max(sizes, default=_number(launch.cell.arguments.get("cuda_graph_max_bs")) or 1)


def _tokens_of(launch: KnownLaunch, phase: Phase) -> float:
    printed = launch.budget.tokens_per_request.get(phase)
    return _batch_of(launch, phase) * (printed or tokens_per_request(phase, launch.cell.speculation))


def _number(value: ArgumentValue | None) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
