"""Records the machine's conditions around a load: looks every half second from a thread, and a canary on either side.

The looks cost the client's process a few hundred microseconds each. The list of processes is read outside of the load.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from mtpgate.gpu.watch import GpuSample
from mtpgate.load.canary import CanaryRun
from mtpgate.load.conditions import Conditions, HostSample, OtherProcess
from mtpgate.server.decode_lines import DecodeLines, read_decode_lines

INTERVAL_SECONDS = 0.5
KEPT_PROCESSES = 5

LookAtGpus = Callable[[], tuple[GpuSample, ...]]


@dataclass(frozen=True)
class CpuTimes:
    """CPU time of all cores since boot, in seconds."""

    busy: float
    steal: float
    total: float

    @classmethod
    def now(cls) -> CpuTimes:
        times = psutil.cpu_times()
        total = sum(getattr(times, name, 0.0) for name in _FIELDS)
        waiting = times.idle + getattr(times, "iowait", 0.0)
        steal = getattr(times, "steal", 0.0)
        return cls(total - waiting - steal, steal, total)

    def since(self, before: CpuTimes) -> HostSample:
        """The shares of the time since then, and the frequency now."""
        total = max(self.total - before.total, 1e-9)
        return HostSample((self.busy - before.busy) / total, (self.steal - before.steal) / total, _frequency())


# guest and guest_nice are part of user and nice.
_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


@dataclass(frozen=True)
class ProcessTime:
    """CPU seconds of a process so far."""

    name: str
    seconds: float


ProcessKey = tuple[int, float]
"""Process id and moment of creation: ids are used again."""


class Watch:
    """Watches from its entry to its exit; :attr:`conditions` is there afterwards.

    ``server_pids`` tells the server's processes, ``look`` the GPUs (None on the CPU), ``canary`` is run before and
    after; what it is told is what the last look saw.
    """

    def __init__(
        self,
        *,
        server_pids: Callable[[], frozenset[int]],
        log: Path,
        look: LookAtGpus | None = None,
        canary: Callable[[tuple[GpuSample, ...]], CanaryRun] | None = None,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._server_pids, self._log, self._look, self._canary = server_pids, log, look, canary
        self._interval = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="conditions", daemon=True)
        self._gpus: list[tuple[GpuSample, ...]] = []
        self._host: list[HostSample] = []
        self._failed: Exception | None = None
        self.conditions = Conditions()

    def __enter__(self) -> Self:
        self._before = self._run_canary()
        self._log_begins = self._log.stat().st_size if self._log.exists() else 0
        self._processes, self._times, self._began = _processes(), CpuTimes.now(), time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if error is not None:
            return
        if self._failed is not None:
            raise self._failed
        seconds, used = time.monotonic() - self._began, CpuTimes.now()
        processes, ours = _processes(), self._server_pids() | _own_pids()
        decode = read_decode_lines(self._log, self._log_begins)
        after = self._run_canary()
        self.conditions = self._summary(seconds, used, processes, ours, decode, after)

    def _summary(
        self,
        seconds: float,
        used: CpuTimes,
        processes: Mapping[ProcessKey, ProcessTime],
        ours: frozenset[int],
        decode: DecodeLines,
        after: CanaryRun,
    ) -> Conditions:
        spent = {
            key: now.seconds - (self._processes[key].seconds if key in self._processes else 0.0)
            for key, now in processes.items()
        }
        own = sum(value for (pid, _), value in spent.items() if pid in ours)
        others = [
            OtherProcess(key[0], processes[key].name, round(value / seconds, 3))
            for key, value in spent.items()
            if key[0] not in ours and value > 0
        ]
        others.sort(key=lambda process: -process.cores)
        others = [replace(process, name=_called(process)) for process in others[:KEPT_PROCESSES]]
        return Conditions(
            seconds=round(seconds, 3),
            gpus=tuple(self._gpus),
            host=tuple(self._host),
            cores=psutil.cpu_count() or 1,
            other_cores=round(max(0.0, used.busy - self._times.busy - own) / seconds, 3),
            others=tuple(others),
            server_pids=self._server_pids(),
            canary_before=self._before.figures,
            canary_after=after.figures,
            canary_note=self._before.note or after.note,
            decode=decode,
        )

    def _run(self) -> None:
        try:
            self._sample()
        except Exception as error:  # noqa: BLE001 - raised again where the load ends
            self._failed = error

    def _sample(self) -> None:
        before = CpuTimes.now()
        while True:
            if self._look is not None:
                self._gpus.append(self._look())
            if self._stop.wait(self._interval):
                break
            now = CpuTimes.now()
            self._host.append(now.since(before))
            before = now
        self._host.append(CpuTimes.now().since(before))

    def _run_canary(self) -> CanaryRun:
        if self._canary is None:
            return CanaryRun()
        return self._canary(self._look() if self._look is not None else ())


def _frequency() -> float | None:
    """The host's mean frequency in MHz, where it can be read."""
    try:
        found = psutil.cpu_freq()
    except (OSError, NotImplementedError):
        return None
    return found.current if found is not None and found.current else None


def _called(process: OtherProcess) -> str:
    """Its name; of Python also what it runs, without arguments, which may be secret."""
    try:
        words = psutil.Process(process.pid).cmdline() if process.name.startswith("python") else []
    except psutil.Error:
        words = []
    for number, word in enumerate(words[1:], start=1):
        if word in ("-m", "-c"):
            return " ".join([process.name, word, *(words[number + 1 : number + 2] if word == "-m" else [])])
        if not word.startswith("-"):
            return f"{process.name} {Path(word).name}"
    return process.name


def _own_pids() -> frozenset[int]:
    me = psutil.Process()
    return frozenset({os.getpid(), *(child.pid for child in me.children(recursive=True))})


def _processes() -> dict[ProcessKey, ProcessTime]:
    found = {}
    for process in psutil.process_iter(["pid", "name", "create_time", "cpu_times"]):
        known = process.info
        if known["cpu_times"] is not None:
            times = known["cpu_times"]
            found[known["pid"], known["create_time"]] = ProcessTime(known["name"] or "?", times.user + times.system)
    return found
