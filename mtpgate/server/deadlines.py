"""How long each start-up phase may take: a hang is noticed in the phase it happens in, not half an hour later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from mtpgate.errors import UsageError
from mtpgate.matrix.vocabulary import Phase
from mtpgate.server.diagnosis import PHASES

DEFAULT_SECONDS: Mapping[Phase, float] = MappingProxyType(
    {
        # Imports and argument parsing: 8 s for the main process and 11 s more for the schedulers on two CPU cores with
        # a warm file cache; the rest is for a cold one and for a model fetched from a hub.
        "preflight": 300.0,
        # NCCL's own time-out for a rendezvous is 600 s; a healthy TP8 needs under 20 s.
        "dist_init": 660.0,
        # 160 shards at 1.4 s are 4 minutes from a local disk; network file systems are several times slower.
        "weight_load": 1800.0,
        "draft_load": 900.0,
        # Seconds, but a page-locked host pool of hundreds of GiB takes minutes.
        "kv_pool": 300.0,
        # SGLang says "can take up to several minutes"; a cold DeepGEMM cache compiles for 10 to 20.
        "capture_prefill": 1800.0,
        "capture_target_decode": 1800.0,
        "capture_target_verify": 1800.0,
        "capture_draft_decode": 1800.0,
        "capture_draft_extend": 1800.0,
        # SGLang's own limit for its warm-up request is 600 s.
        "warmup": 660.0,
        # From the "ready to roll" line to a healthy answer of the control interface.
        "ready": 60.0,
    }
)

CPU_SECONDS: Mapping[str, float] = MappingProxyType(
    {
        # The whole start takes 16 to 24 s on two cores without a GPU; a busy machine gets five times that.
        "preflight": 120.0,
        "dist_init": 60.0,
        "weight_load": 60.0,
        "draft_load": 60.0,
        "kv_pool": 60.0,
        "warmup": 120.0,
    }
)
"""Overrides for the embedded CPU engine with its small model."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds that a launch may stay in each phase. Build it with :meth:`with_overrides` or as it is."""

    seconds: Mapping[Phase, float] = field(default_factory=lambda: DEFAULT_SECONDS)

    @classmethod
    def with_overrides(cls, overrides: Mapping[str, float]) -> Deadlines:
        """The defaults with ``overrides``; UsageError for an unknown phase or a time that is not positive."""
        for name, seconds in overrides.items():
            if name not in DEFAULT_SECONDS:
                known = ", ".join(phase for phase in PHASES if phase in DEFAULT_SECONDS)
                raise UsageError(f"deadline for unknown phase {name!r}; the phases are {known}")
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
                raise UsageError(f"deadline for phase {name!r} must be a positive number of seconds, not {seconds!r}")
        changed: dict[Phase, float] = dict(DEFAULT_SECONDS)
        for phase in DEFAULT_SECONDS:
            if phase in overrides:
                changed[phase] = float(overrides[phase])
        return cls(MappingProxyType(changed))

    def limit(self, phase: Phase) -> float | None:
        """Seconds for ``phase``; None if it has no end of its own (``serving``)."""
        return self.seconds.get(phase)

    def overdue(self, phase: Phase, since: float, now: float) -> bool:
        """Whether a launch that entered ``phase`` at ``since`` has been in it for too long at ``now`` (same clock)."""
        limit = self.limit(phase)
        return limit is not None and now - since > limit
