"""What the processes of a launch did between two looks at them: CPU time, bytes read and written, compilers at work.

Reading (psutil) and reckoning are apart: :class:`ActivityMeter` gets readings and is pure, :class:`Sampler` takes them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import psutil

SAMPLE_SECONDS = 1.0
"""How often a family is looked at."""
SAMPLE_SHARE = 0.05
"""Of its own time that the suite spends on it at most: a look reads all of ``/proc``, thousands of processes on a node
that others use as well. ``MOST_SAMPLE_SECONDS`` keeps the promise of when a stall is noticed."""
MOST_SAMPLE_SECONDS = 2.0

COMPILER_CORES = 0.05
"""A compiler that uses less is waiting for another one (``ninja``, ``nvcc`` and ``gcc`` only start the real ones), or
for ever. Clock ticks are 10 ms, so one second shows a hundredth of a core."""

COMPILER = re.compile(
    r"(?:[\w.]+-)*"  # x86_64-linux-gnu-g++
    r"(?:nvcc|cicc|ptxas|cudafe\+\+|fatbinary|nvlink|nvvm|tileiras|hipcc|ninja|cmake|make"
    r"|cc1(?:plus)?|gcc|g\+\+|cc|c\+\+|cpp|as|collect2|ld(?:\.\w+)?|lld|clang(?:\+\+)?|llc|opt|rustc|ccache|sccache)"
    r"(?:-\d[\d.]*)?"
)
INDUCTOR_WORKER = "torch/_inductor/compile_worker"
"""In the command line of the Python processes in which ``torch.compile`` compiles Triton kernels."""

Key = tuple[int, float]
"""Process id and creation time: an id alone may be given out again."""


@dataclass(frozen=True)
class Reading:
    """One process at one moment; all figures count from its start."""

    name: str
    own_cpu: float
    """Seconds, user and system."""
    reaped_cpu: float = 0.0
    """Seconds of its children that ended and were waited for, with theirs."""
    moved_bytes: int = 0
    """Read and written, its ended children's included; 0 where they cannot be seen."""
    compiler: bool = False


@dataclass(frozen=True)
class Activity:
    """What a family did in ``seconds``."""

    seconds: float
    cpu: Mapping[str, float] = field(default_factory=dict)
    """CPU seconds by process name; ``ended children`` are those that came and went unseen."""
    most_cores: float = 0.0
    """CPU seconds a second of the process that used most."""
    moved_bytes: int = 0
    compilers: tuple[str, ...] = ()
    """Names of the compilers that used CPU time or were started."""
    processes: int = 0
    """How many were alive at the end."""

    @property
    def cpu_seconds(self) -> float:
        return sum(self.cpu.values())


class ActivityMeter:
    """Turns readings of a family into what happened between them.

    Nothing counts backwards when a process ends: its parent then reports it as reaped (not at once, or never, if nobody
    waits for it), so what was already counted of ended processes is kept and taken off what parents report.
    """

    def __init__(self) -> None:
        self._last: Mapping[Key, Reading] | None = None
        self._at = 0.0
        self._ended_cpu = 0.0
        self._ended_bytes = 0

    def feed(self, readings: Mapping[Key, Reading], now: float) -> Activity | None:
        """``readings`` of all live processes at ``now`` (seconds); None the first time."""
        last, seconds = self._last, now - self._at
        self._last, self._at = readings, now
        if last is None or seconds <= 0:
            return None
        cpu: dict[str, float] = {}
        most = reaped = 0.0
        moved = 0
        compilers = set()
        for key, reading in readings.items():
            before = last.get(key, Reading(reading.name, 0.0))
            used = max(0.0, reading.own_cpu - before.own_cpu)
            cpu[reading.name] = cpu.get(reading.name, 0.0) + used
            most = max(most, used)
            reaped += max(0.0, reading.reaped_cpu - before.reaped_cpu)
            moved += max(0, reading.moved_bytes - before.moved_bytes)
            if reading.compiler and (key not in last or used >= COMPILER_CORES * seconds):
                compilers.add(reading.name)
        ended = [reading for key, reading in last.items() if key not in readings]
        self._ended_cpu += sum(reading.own_cpu + reading.reaped_cpu for reading in ended)
        self._ended_bytes += sum(reading.moved_bytes for reading in ended)
        unseen, self._ended_cpu = max(0.0, reaped - self._ended_cpu), max(0.0, self._ended_cpu - reaped)
        moved, self._ended_bytes = max(0, moved - self._ended_bytes), max(0, self._ended_bytes - moved)
        if unseen > 0:
            cpu["ended children"] = unseen
        cores = max(most, unseen) / seconds
        return Activity(seconds, cpu, cores, moved, tuple(sorted(compilers)), len(readings))


class Sampler:
    """Looks at the processes ``pids()`` about every second."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._meter = ActivityMeter()
        self._next = 0.0

    def due(self, now: float) -> bool:
        return now >= self._next

    def sample(self, now: float) -> Activity | None:
        """What happened since the last call; None the first time."""
        began = time.perf_counter()
        readings = dict(filter(None, map(read_process, self._pids())))
        cost = time.perf_counter() - began
        self._next = now + min(max(SAMPLE_SECONDS, cost / SAMPLE_SHARE), MOST_SAMPLE_SECONDS)
        return self._meter.feed(readings, now)


def read_process(pid: int) -> tuple[Key, Reading] | None:
    """The reading of ``pid``; None when it has gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            name, times = process.name(), process.cpu_times()
            reading = Reading(
                name,
                own_cpu=times.user + times.system,
                reaped_cpu=times.children_user + times.children_system,
                moved_bytes=_moved_bytes(process),
                compiler=is_compiler(name) or (name.startswith("p") and _is_inductor_worker(process)),
            )
            return (pid, process.create_time()), reading
    except psutil.Error:
        return None


def is_compiler(name: str) -> bool:
    """Whether a process of this name translates code, or starts those that do."""
    return COMPILER.fullmatch(name) is not None


def _moved_bytes(process: psutil.Process) -> int:
    try:
        counters = process.io_counters()
    except (psutil.Error, OSError):  # Not for processes of other users.
        return 0
    # ``read_bytes`` is what came from storage, page faults of a mapped file included; ``read_chars`` what read(2)
    # returned, from network file systems and caches as well. Downloads show in what is written.
    return int(counters.read_bytes + counters.read_chars + counters.write_bytes + counters.write_chars)


def _is_inductor_worker(process: psutil.Process) -> bool:
    try:
        return any(INDUCTOR_WORKER in part for part in process.cmdline())
    except psutil.Error:
        return False
