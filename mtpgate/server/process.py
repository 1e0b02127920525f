"""One server process: started under the guardian, watched, and stopped with all that it started."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtpgate.errors import UsageError
from mtpgate.server import strays

MARK = strays.MARK
STOP_GRACE_SECONDS = 15.0
"""From SIGTERM to SIGKILL. SGLang 0.5.23 needs 2 to 5 s on the CPU, more with requests in flight."""


@dataclass(frozen=True)
class StopReport:
    """How a server ended. ``exit_code`` is negative for a signal, None if it could not be learned."""

    exit_code: int | None
    seconds: float
    """From the request to stop until nothing was left."""
    survivors: tuple[str, ...] = ()
    """``pid name`` of each process that outlived the stop's grace, or the server itself, and was killed."""


class ServerProcess:
    """A command and everything below it. Build it with :meth:`start`.

    End only through :meth:`stop`; if this Python process dies in any way the guardian ends the server within seconds.
    """

    def __init__(self, guardian: subprocess.Popen[bytes], control: int, status: int, mark: str) -> None:
        self._guardian = guardian
        self._control = control
        self._status = status
        self._buffer = b""
        self._survivors: list[str] = []
        self._report: StopReport | None = None
        self._status_closed = False
        self.mark = mark
        """Value of ``MTPGATE_LAUNCH`` in the environment of every process of this launch."""
        self.pid: int = 0
        """Process id of the command itself (not of the guardian); also its process group and session."""
        self.exit_code: int | None = None

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_path: Path,
        directory: Path | None = None,
        pass_fds: Iterable[int] = (),
    ) -> ServerProcess:
        """Start ``command`` with exactly ``environment`` plus the mark; stdout and stderr go to ``log_path``.

        ``pass_fds`` (lock descriptors of leases) stay open as long as the guardian or the server lives.
        Raises UsageError if the command cannot be executed.
        """
        log_path.parent.mkdir(parents=True, exist_ok=True)
        mark = uuid.uuid4().hex
        control_read, control_write = os.pipe()
        status_read, status_write = os.pipe()
        guardian_path = Path(__file__).with_name("guardian.py")
        guarded = [sys.executable, "-I", "-S", str(guardian_path), str(control_read), str(status_write), "--", *command]
        try:
            with log_path.open("wb") as log:
                guardian = subprocess.Popen(
                    guarded,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**environment, MARK: mark},
                    cwd=directory,
                    start_new_session=True,
                    pass_fds=(control_read, status_write, *pass_fds),
                )
        except BaseException:
            os.close(control_write)
            os.close(status_read)
            raise
        finally:
            os.close(control_read)
            os.close(status_write)
        process = cls(guardian, control_write, status_read, mark)
        process._await_pid(command)
        return process

    def _await_pid(self, command: Sequence[str]) -> None:
        try:
            while self.pid == 0:
                if not self._read_status(timeout=10.0):
                    raise UsageError(f"the server command could not be started: {' '.join(command)}")
        except BaseException:
            self.stop(grace_seconds=0.0)
            raise

    def _read_status(self, timeout: float) -> bool:
        """Take in what the guardian says; False when it said nothing in ``timeout`` seconds or has gone."""
        if self._status_closed or not select.select([self._status], [], [], timeout)[0]:
            return False
        data = os.read(self._status, 65536)
        if not data:
            self._status_closed = True
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            if word == "pid":
                self.pid = int(rest)
            elif word == "exit":
                self.exit_code = int(rest)
            elif word == "survivor":
                self._survivors.append(rest)
            elif word == "error":
                raise UsageError(f"the server command cannot be executed: {rest}")
        return True

    def alive(self) -> bool:
        """Whether the command itself still runs."""
        while self._read_status(timeout=0.0):
            pass
        return self._report is None and self.exit_code is None and not self._status_closed

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the command to end; True as soon as it has."""
        until = time.monotonic() + seconds
        while self.alive():
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._read_status(timeout=left)
        return True

    def pids(self) -> frozenset[int]:
        """Process ids of the command and all its live descendants."""
        return strays.family(self.pid) | strays.family(self._guardian.pid) - {self._guardian.pid}

    def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> StopReport:
        """End the server and all that it started; may be called again and then returns the same report.

        SIGTERM goes to the command, SIGKILL after ``grace_seconds`` to every descendant that is left, and at last to
        whatever else carries the mark of this launch.
        """
        if self._report is not None:
            return self._report
        began = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # The guardian may have ended already, and with it the server.
            os.write(self._control, f"stop {grace_seconds}\n".encode())
        until = began + grace_seconds + 15.0
        while not self._status_closed and time.monotonic() < until:
            with contextlib.suppress(UsageError):  # The caller of start() is told already.
                self._read_status(timeout=until - time.monotonic())
        try:
            self._guardian.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._guardian.kill()
            self._guardian.wait()
        self._survivors += strays.kill_marked(self.mark)
        os.close(self._control)
        os.close(self._status)
        self._status_closed = True
        self._report = StopReport(self.exit_code, time.monotonic() - began, tuple(self._survivors))
        return self._report
