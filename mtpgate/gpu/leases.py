"""Taking turns on GPUs (or on the CPU): one lock file each, held as long as a server lives.

A waiter first takes the queue lock and keeps it while it collects its resources one by one; whoever comes later waits
for the queue. So nobody starves (a launch on 8 GPUs is not overtaken for ever by launches on one), and two waiters
never hold parts of what the other needs. The kernel drops a lock when the last process that holds its descriptor has
gone: the descriptors are passed on to the server (:attr:`Lease.descriptors`), so a server that outlives its suite keeps
its GPUs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtpgate.errors import InfrastructureFault, UsageError

CPU = "cpu"
"""The one resource of a machine without a GPU."""
POLL_SECONDS = 0.2
QUEUE = "queue"


@dataclass(frozen=True)
class Holder:
    """Who holds a lock: process id, since when (Unix time, seconds), and what for."""

    pid: int
    since: float
    purpose: str


@dataclass(frozen=True)
class Waiting:
    """Progress of a waiter. ``holder`` is None if the holder did not leave its name."""

    resource: str
    holder: Holder | None
    waited_seconds: float


@dataclass(frozen=True)
class Lease:
    """What was leased. ``descriptors`` are for the server's ``pass_fds``."""

    resources: tuple[str, ...]
    descriptors: tuple[int, ...]


def runtime_folder() -> Path:
    """This user's folder for locks: ``MTPGATE_RUNTIME``, or one below ``XDG_RUNTIME_DIR`` or the temporary folder.

    Raises InfrastructureFault if it cannot be made, or belongs to someone else.
    """
    named = os.environ.get("MTPGATE_RUNTIME")
    session = os.environ.get("XDG_RUNTIME_DIR")
    if named:
        folder = Path(named)
    elif session:
        folder = Path(session) / "mtpgate"
    else:
        folder = Path(tempfile.gettempdir()) / f"mtpgate-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as error:
        raise InfrastructureFault(f"cannot use {folder} for locks: {error.strerror}; set MTPGATE_RUNTIME") from error
    if owner != os.getuid():
        raise InfrastructureFault(f"{folder} belongs to user {owner}, not to this one; set MTPGATE_RUNTIME")
    return folder


@contextlib.contextmanager
def lease(
    candidates: Sequence[str],
    count: int,
    *,
    purpose: str = "",
    on_wait: Callable[[Waiting], None] | None = None,
    timeout_seconds: float | None = None,
    folder: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Lease]:
    """Hold ``count`` of ``candidates`` (GPU UUIDs or indices, or ``("cpu",)``) for the block.

    ``on_wait`` is called at every poll while waiting. Raises UsageError if there are fewer candidates than ``count``,
    InfrastructureFault after ``timeout_seconds`` of waiting, naming the holder.
    """
    if count > len(candidates):
        raise UsageError(f"{count} of {len(candidates)} resources wanted: {', '.join(candidates) or 'none'}")
    collector = _Collector(
        folder or runtime_folder(),
        purpose=purpose,
        on_wait=on_wait,
        timeout_seconds=timeout_seconds,
        clock=clock,
        sleep=sleep,
    )
    with contextlib.ExitStack() as held:
        with contextlib.ExitStack() as queue:
            collector.collect((QUEUE,), 1, queue)
            taken = collector.collect(candidates, count, held)
        yield Lease(tuple(taken), tuple(taken.values()))


class _Collector:
    def __init__(
        self,
        folder: Path,
        *,
        purpose: str,
        on_wait: Callable[[Waiting], None] | None,
        timeout_seconds: float | None,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.folder = folder
        self.purpose = purpose
        self.on_wait = on_wait
        self.timeout_seconds = timeout_seconds
        self.clock = clock
        self.sleep = sleep
        self.began = clock()

    def collect(self, candidates: Sequence[str], count: int, stack: contextlib.ExitStack) -> dict[str, int]:
        """Lock ``count`` of ``candidates``; ``stack`` gives them back."""
        taken: dict[str, int] = {}
        while True:
            for name in candidates:
                if name not in taken and len(taken) < count:
                    descriptor = self._try(name)
                    if descriptor is not None:
                        taken[name] = descriptor
                        # Closing is enough, and right: unlocking would take it from a server that still lives.
                        stack.callback(os.close, descriptor)
            if len(taken) == count:
                return taken
            self._wait(next(name for name in candidates if name not in taken))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '_')}.lock"

    def _try(self, name: str) -> int | None:
        descriptor = os.open(self._path(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        note = json.dumps({"pid": os.getpid(), "since": time.time(), "purpose": self.purpose}).encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note, 0)
        return descriptor

    def _wait(self, name: str) -> None:
        waited = self.clock() - self.began
        waiting = Waiting(name, self._holder(name), waited)
        if self.timeout_seconds is not None and waited > self.timeout_seconds:
            raise InfrastructureFault(f"waited {waited:.0f} s for {describe(waiting)}")
        if self.on_wait is not None:
            self.on_wait(waiting)
        self.sleep(POLL_SECONDS)

    def _holder(self, name: str) -> Holder | None:
        try:
            note = json.loads(self._path(name).read_text())
            return Holder(int(note["pid"]), float(note["since"]), str(note["purpose"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def describe(waiting: Waiting) -> str:
    """One phrase for a person: the resource, and who holds it since when."""
    if waiting.holder is None:
        return f"{waiting.resource} (held by an unknown process)"
    since = time.strftime("%H:%M:%S", time.localtime(waiting.holder.since))
    purpose = f" for {waiting.holder.purpose}" if waiting.holder.purpose else ""
    return f"{waiting.resource} (held by pid {waiting.holder.pid}{purpose} since {since})"
