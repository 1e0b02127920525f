"""Whether a launch that says nothing is still alive.

Compiling kernels, reading weights from a slow disk and waiting for a peer that is gone look the same in the log:
silence. They differ in what the processes do meanwhile. A launch is stalled when nothing was written to its log for the
phase's silence limit (any byte counts: a progress bar that moves ends no line), and

* no compiler used CPU time or was started. One that does is slow, not stalled; the phase's deadline is its only end;
* while something may have to be read (``LOADING``): its processes read or wrote less than ``MOVING_BYTES`` a second;
* none of its processes used CPU time. This alone is weak: a rank that waits in a collective operation of NCCL spins on
  one core for ever. So a silent launch that is busy gets ``BUSY_FACTOR`` times the limit, and not more.

A launch whose processes cannot be seen (in a container) counts as busy: not seeing is not the same as idle.
"""

from __future__ import annotations

from dataclasses import dataclass

from mtpgate.matrix.vocabulary import Phase
from mtpgate.server.activity import MOST_SAMPLE_SECONDS, Activity
from mtpgate.server.deadlines import Deadlines

BUSY_FACTOR = 3.0
"""Three times the 300 s of a capture lets PyTorch's own watchdog (600 s, and 480 s for its heartbeat) tell first which
collective operation did not end, and gives a compiler inside the process (NVRTC, Triton, CuTe: no process of its own,
and silent for minutes) 15 minutes. It is half of the phase's deadline."""
BUSY_CORES = 0.1
"""CPU time a second of one process from which on it is busy. A spinning rank uses a whole core, the threads of one that
waits (heartbeats, monitors) some hundredths; a process on an overloaded machine gets a tenth now and then."""
MOVING_BYTES = 1 << 20
"""Bytes a second that are progress of reading weights. Slower than this, the 160 GB of a large model take two days."""
LOADING: frozenset[Phase] = frozenset({"preflight", "dist_init", "weight_load", "draft_load"})
"""Phases in which reading is progress: imports, checkpoints. (A rank may still import when others are in dist_init.)
Later on there is nothing to read, and who does is polling: there it is as weak a sign as CPU time."""
RECENT_SECONDS = 10.0
"""What was seen so shortly ago is what the launch does now: one compiler follows another, with pauses."""
MOST_NAMES = 3
"""Process names in a diagnosis."""


@dataclass(frozen=True)
class LifeSigns:
    """What is seen of a launch, for a person and for the diagnosis."""

    silent_seconds: float
    """Since its log grew."""
    lifeless_seconds: float
    """Since the last sign that counts: for a busy launch one beyond doubt, for an idle one any."""
    limit_seconds: float | None
    """Of :attr:`lifeless_seconds`: the phase's silence limit, or the longer one of a busy launch."""
    busy: bool
    visible: bool = True
    """Whether its processes can be seen at all."""
    moved_bytes: int = 0
    cpu: tuple[tuple[str, float], ...] = ()
    """CPU seconds by process name since its log grew, most first."""
    processes: int = 0
    compilers: tuple[str, ...] = ()
    """Compilers at work."""
    reading: bool = False
    """Whether data are being read, or written, in bulk."""

    def words(self) -> str:
        """Such as ``no output for 301 s (limit 300 s), processes idle (0.2 s CPU by 3 processes)``."""
        silent = f"no output for {seconds_text(self.silent_seconds)}"
        if self.limit_seconds is None or self.lifeless_seconds <= self.limit_seconds:
            return f"{silent}, {self.doing()}"
        limit = f"(limit {seconds_text(self.limit_seconds)})"
        if self.silent_seconds - self.lifeless_seconds <= MOST_SAMPLE_SECONDS:
            return f"{silent} {limit}, {self.doing()}"
        return f"{silent}, no sign of life for {seconds_text(self.lifeless_seconds)} {limit}, {self.doing()}"

    def doing(self) -> str:
        """What the processes did since the log grew."""
        if not self.visible:
            return "its processes cannot be seen from here"
        used = f"{sum(seconds for _, seconds in self.cpu):.1f} s CPU by {_count(self.processes, 'process', 'es')}"
        names = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.cpu[:MOST_NAMES] if seconds >= 0.1)
        used += f": {names}" if names else ""
        if self.moved_bytes >= MOVING_BYTES:
            used += f"; {self.moved_bytes / 1e6:.0f} MB read and written"
        if self.compilers:
            return f"compilers at work: {', '.join(self.compilers)} ({used})"
        return f"processes {'reading' if self.reading else 'busy' if self.busy else 'idle'} ({used})"


class StallWatch:
    """Is told of the log's growth and of the processes' activity, and says whether the launch is stalled.

    All times are seconds on one clock, the launch's own. ``visible``: whether its processes can be seen.
    """

    def __init__(self, deadlines: Deadlines, *, visible: bool = True) -> None:
        self._deadlines = deadlines
        self._visible = visible
        self._log_bytes = 0
        self._processes = 0
        self._compilers: tuple[str, ...] = ()
        self._compilers_at = self._moving_at = float("-inf")
        self._restart(0.0)

    def _restart(self, now: float) -> None:
        self._log_at = now
        self._alive_at = now
        """The last sign beyond doubt: output, a compiler at work, weights being read."""
        self._busy_at = now
        """The last sign of any kind."""
        self._cpu: dict[str, float] = {}
        self._moved_bytes = 0

    def grown(self, log_bytes: int, now: float) -> None:
        """The log has ``log_bytes`` bytes at ``now``; another number than before is a sign of life."""
        if log_bytes != self._log_bytes:
            self._log_bytes = log_bytes
            self._restart(now)

    def saw(self, activity: Activity, phase: Phase, now: float) -> None:
        """The processes did ``activity`` in the time up to ``now``."""
        self._processes = activity.processes
        if now - activity.seconds >= self._log_at:  # Otherwise some of it was before the last output.
            for name, seconds in activity.cpu.items():
                self._cpu[name] = self._cpu.get(name, 0.0) + seconds
            self._moved_bytes += activity.moved_bytes
        moving = activity.moved_bytes >= MOVING_BYTES * activity.seconds
        if activity.compilers:
            self._compilers, self._compilers_at = activity.compilers, now
        if moving:
            self._moving_at = now
        if activity.compilers or (moving and phase in LOADING):
            self._alive_at = self._busy_at = now
        elif moving or activity.most_cores >= BUSY_CORES:
            self._busy_at = now

    def silent_seconds(self, now: float) -> float:
        """How long ago the log grew."""
        return now - self._log_at

    def stalled(self, phase: Phase, now: float) -> bool:
        """Whether it shows no life for too long. Ask right after :meth:`saw`: what it did since then is not known."""
        limit, busy_limit = self._limits(phase)
        if limit is None or busy_limit is None:
            return False
        return now - self._alive_at > busy_limit or (self._visible and now - self._busy_at > limit)

    def signs(self, phase: Phase, now: float) -> LifeSigns:
        """What is seen of it at ``now``."""
        limit, busy_limit = self._limits(phase)
        recent = RECENT_SECONDS if limit is None else min(RECENT_SECONDS, limit)
        busy = (
            not self._visible
            or self._alive_at < self._busy_at >= now - recent
            or (busy_limit is not None and now - self._alive_at > busy_limit)
        )
        return LifeSigns(
            silent_seconds=self.silent_seconds(now),
            lifeless_seconds=now - (self._alive_at if busy else self._busy_at),
            limit_seconds=busy_limit if busy else limit,
            busy=busy,
            visible=self._visible,
            moved_bytes=self._moved_bytes,
            cpu=tuple(sorted(self._cpu.items(), key=lambda item: -item[1])),
            processes=self._processes,
            # Two samples at least: on a busy machine they come late.
            compilers=self._compilers if now - self._compilers_at <= max(recent, 2 * MOST_SAMPLE_SECONDS) else (),
            reading=now - self._moving_at <= recent,
        )

    def _limits(self, phase: Phase) -> tuple[float | None, float | None]:
        """Seconds that an idle and a busy launch may be silent in ``phase``."""
        limit, total = self._deadlines.silence_limit(phase), self._deadlines.limit(phase)
        if limit is None or total is None:
            return None, None
        return limit, min(limit * BUSY_FACTOR, total)


def seconds_text(value: float) -> str:
    """``301 s``, ``1.5 s``."""
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def _count(number: int, one: str, ending: str) -> str:
    return f"{number} {one}{'' if number == 1 else ending}"
