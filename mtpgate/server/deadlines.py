"""How long each start-up phase may take, and how long it may be silent: a hang is noticed in the phase it happens in.

The first limit is for the whole phase, whatever happens in it. The second, much shorter, is for the time without output
and without another sign of life; what counts as one is in :mod:`mtpgate.server.stall`.
"""

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

DEFAULT_SILENCE_SECONDS: Mapping[Phase, float] = MappingProxyType(
    {
        # Importing torch and SGLang says nothing; from a cold network file system it takes a minute or two, but reads.
        "preflight": 120.0,
        # Eight ranks on one node need under 20 s; the first use of a GPU after boot, and a rank that is late with its
        # imports, take a minute more.
        "dist_init": 180.0,
        # A progress bar moves with every shard: seconds from a local disk, a minute or two from a slow one. Repacking
        # quantized weights after the last shard is silent, but uses the CPU.
        "weight_load": 300.0,
        "draft_load": 300.0,
        # Seconds; page-locking a large host pool is work of the CPU.
        "kv_pool": 120.0,
        # The bar moves with every batch size, in seconds; between two of them a kernel may be compiled, which shows.
        "capture_prefill": 300.0,
        "capture_target_decode": 300.0,
        "capture_target_verify": 300.0,
        "capture_draft_decode": 300.0,
        "capture_draft_extend": 300.0,
        # One request; the first use of a kernel compiles it.
        "warmup": 300.0,
        # Nothing needs to be logged while it is asked for its health.
        "ready": 60.0,
    }
)
"""By what a phase does when it is idle in every respect: waits for storage, for the network, for another process."""

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

CPU_SILENCE_SECONDS: Mapping[str, float] = MappingProxyType(
    {
        # All of a start is work of the CPU, of half a second to 12 s without a line: whoever is idle here waits for
        # something that does not come. A machine with ten times more to do than cores still gives a tenth of one.
        "preflight": 60.0,
        "dist_init": 30.0,
        "weight_load": 30.0,
        "draft_load": 30.0,
        "kv_pool": 30.0,
        "warmup": 60.0,
    }
)


@dataclass(frozen=True)
class Deadlines:
    """Seconds that a launch may stay in each phase, and be silent in it. Build it with :meth:`with_overrides`."""

    seconds: Mapping[Phase, float] = field(default_factory=lambda: DEFAULT_SECONDS)
    silence: Mapping[Phase, float] = field(default_factory=lambda: DEFAULT_SILENCE_SECONDS)

    @classmethod
    def with_overrides(cls, overrides: Mapping[str, float], silence: Mapping[str, float] | None = None) -> Deadlines:
        """The defaults with ``overrides`` of the deadlines and ``silence`` of the silence limits.

        UsageError for an unknown phase or a time that is not positive.
        """
        return cls(
            _changed(DEFAULT_SECONDS, overrides, "deadline"),
            _changed(DEFAULT_SILENCE_SECONDS, silence or {}, "silence limit"),
        )

    def limit(self, phase: Phase) -> float | None:
        """Seconds for ``phase``; None if it has no end of its own (``serving``)."""
        return self.seconds.get(phase)

    def silence_limit(self, phase: Phase) -> float | None:
        """Seconds without a sign of life, at most :meth:`limit`; None if the phase has no end of its own."""
        total, silence = self.limit(phase), self.silence.get(phase)
        return total if total is None or silence is None else min(total, silence)

    def overdue(self, phase: Phase, since: float, now: float) -> bool:
        """Whether a launch that entered ``phase`` at ``since`` has been in it for too long at ``now`` (same clock)."""
        limit = self.limit(phase)
        return limit is not None and now - since > limit


def _changed(usual: Mapping[Phase, float], overrides: Mapping[str, float], what: str) -> Mapping[Phase, float]:
    for name, seconds in overrides.items():
        if name not in usual:
            known = ", ".join(phase for phase in PHASES if phase in usual)
            raise UsageError(f"{what} for unknown phase {name!r}; the phases are {known}")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise UsageError(f"{what} for phase {name!r} must be a positive number of seconds, not {seconds!r}")
    return MappingProxyType({phase: float(overrides.get(phase, seconds)) for phase, seconds in usual.items()})
