"""The memory of one rank of a cell that is not launched yet; the method is described in :mod:`.forecast`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from mtpgate.matrix.cell import Cell
from mtpgate.matrix.vocabulary import Phase
from mtpgate.server.budget import RankBudget
from mtpgate.server.known_launch import KnownLaunch, batch_of, graph_limit, number, tokens_of, tokens_per_request

CAPTURES: tuple[Phase, ...] = tuple(phase for phase in get_args(Phase) if phase.startswith("capture_"))
SAME_PASS: Mapping[Phase, tuple[Phase, ...]] = {
    "capture_target_verify": ("capture_target_decode",),
    "capture_target_decode": ("capture_target_verify",),
}


class RankForecast:
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
        limit = number(self.cell.arguments.get("max_total_tokens"))
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
        for phase in self._phases():
            # The forward pass of a decode graph is that of a verify graph, over fewer tokens.
            names = (phase, *SAME_PASS.get(phase, ()))
            found = next(((at, name) for name in names for at in self.known if self._captured(at, name)), None)
            if found is None:
                self.unknown.append(f"the graphs of {phase}: no known launch captured them")
                continue
            source, name = found
            scale = 1.0 if phase == "capture_prefill" else self._tokens_captured(phase) / tokens_of(source, name)
            self.segments[phase] = (self._captured(source, name) or 0.0) * scale

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
        limit = graph_limit(self.cell)
        if limit is None:
            limit = batch_of(self.known[0], phase)
            self.notes.append("the same graph batch limit")
        return limit * tokens_per_request(phase, self.cell.speculation)
