"""Launching one server: from the argument list to a ready server, or to a failure that says what broke."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mtpgate.server import ports
from mtpgate.server.client import ServerClient, ServerError
from mtpgate.server.command import LaunchSpec
from mtpgate.server.diagnose import diagnose_file
from mtpgate.server.diagnosis import Diagnosis, Phase
from mtpgate.server.follower import LogFollower
from mtpgate.server.phases import PhaseTracker, Timeline, records
from mtpgate.server.process import STOP_GRACE_SECONDS, ServerProcess, StopReport

POLL_SECONDS = 0.1
PROGRESS_SECONDS = 1.0
DOOMED_QUIET_SECONDS = 2.0
"""A server that announced its end is ended when its log has been quiet for so long: all ranks have then told their
tracebacks, and 0.5.23 would only sleep (5 s "before crash diagnostics") before it kills itself."""
DOOMED_GRACE_SECONDS = 15.0
"""The longest that a server gets after such a line."""
FAILED_STOP_GRACE_SECONDS = 2.0
"""Grace of a launch that has failed already: a server that hangs with a taken port ignores SIGTERM."""

HOPELESS = ("address already in use",)
"""After this line SGLang 0.5.23 neither gets ready nor dies."""
DOOMED = ("hit an exception", "Received sigquit", "SIGQUIT received", "scheduler is dead", "died during initialization")


@dataclass(frozen=True)
class Progress:
    """Where a launch is, about every second."""

    cell_id: str
    phase: Phase
    phase_seconds: float
    total_seconds: float
    last_line: str


class StartupFailure(Exception):
    """The server did not get ready: a fault of the product (or of the cell), not of the suite.

    ``exit_code`` is negative for a signal, and None if the launch was ended because of a deadline or a hopeless state.
    """

    def __init__(
        self,
        *,
        cell_id: str,
        diagnosis: Diagnosis,
        timeline: Timeline,
        exit_code: int | None,
        log_path: Path,
        seconds: float,
        command: tuple[str, ...],
        stopped: StopReport | None = None,
    ) -> None:
        self.cell_id = cell_id
        self.diagnosis = diagnosis
        self.timeline = timeline
        self.exit_code = exit_code
        self.log_path = log_path
        self.seconds = seconds
        """From the launch until the failure was known."""
        self.command = command
        self.stopped = stopped
        lines = "\n".join(f"  {item.line}: {item.text}" for item in diagnosis.evidence)
        ended = "was ended by the suite" if exit_code is None else f"exited with {exit_code}"
        super().__init__(
            f"{cell_id} did not start: {diagnosis.kind} in {diagnosis.phase} after {seconds:.1f} s\n"
            f"{diagnosis.summary}\nThe server {ended}; its log: {log_path}" + (f"\n{lines}" if lines else "")
        )


class RunningServer:
    """A server that is ready. Use it as a context manager, or call :meth:`stop`."""

    def __init__(
        self,
        spec: LaunchSpec,
        process: ServerProcess,
        *,
        timeline: Timeline,
        startup_seconds: float,
        server_info: dict[str, Any],
    ) -> None:
        self.spec = spec
        self.cell_id = spec.cell_id
        self.base_url = spec.base_url
        self.host = spec.host
        self.port = spec.port
        self.command = spec.command
        self.log_path = spec.log_path
        self.pid = process.pid
        self.timeline = timeline
        self.startup_seconds = startup_seconds
        """From the launch until it was known to be ready."""
        self.server_info = server_info
        """The answer of ``/server_info`` right after start-up."""
        self.stop_report: StopReport | None = None
        self._process = process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def exit_code(self) -> int | None:
        """Exit code once it has ended (negative: signal)."""
        return self._process.exit_code

    def client(self) -> ServerClient:
        """A new control client for this server; the caller closes it."""
        return ServerClient(self.base_url)

    def alive(self) -> bool:
        return self._process.alive()

    def pids(self) -> frozenset[int]:
        """Process ids of the server and its descendants."""
        return self._process.pids()

    def death(self) -> Diagnosis | None:
        """Why it died while serving; None while it lives, and after a stop that was asked for."""
        if self.stop_report is not None or self._process.alive():
            return None
        context = {**self.spec.context, "exit_code": self._process.exit_code, "timed_out": False}
        return diagnose_file(self.log_path, context)

    def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> StopReport:
        """End the server and everything it started; may be called again."""
        self.stop_report = self._process.stop(grace_seconds)
        return self.stop_report


def launch(
    spec: LaunchSpec,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> RunningServer:
    """Start ``spec`` and wait until it serves.

    Ready means: our own process lives, its log says so, the port is listened on by a process of ours, and ``/health``
    and ``/server_info`` answer. Raises :class:`StartupFailure` when it dies, hangs in a phase beyond the deadline, or
    can never get ready; UsageError before anything is started if the port is taken or the command cannot be executed.
    Whatever is raised (KeyboardInterrupt too), no process is left.
    """
    ports.require_free(spec.host, spec.port)
    process = ServerProcess.start(
        spec.command,
        environment=spec.environment,
        log_path=spec.log_path,
        directory=spec.directory,
        pass_fds=spec.pass_fds,
    )
    try:
        return _Launch(spec, process, on_progress, clock, sleep).run()
    except BaseException:
        process.stop(FAILED_STOP_GRACE_SECONDS)
        raise


class _Launch:
    def __init__(
        self,
        spec: LaunchSpec,
        process: ServerProcess,
        on_progress: Callable[[Progress], None] | None,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.spec = spec
        self.process = process
        self.on_progress = on_progress
        self.clock = clock
        self.sleep = sleep
        self.began = clock()
        self.tracker = PhaseTracker(spec.speculative)
        self.follower = LogFollower(spec.log_path)
        self.last_line = ""
        self.last_line_at = 0.0
        self.next_progress = 0.0
        self.hopeless = False
        self.doomed_since: float | None = None

    def run(self) -> RunningServer:
        while True:
            lived = self.process.alive()  # Before the log is read: what it wrote before it died is then complete.
            now = self.clock() - self.began
            self._follow(self.follower.read() if lived else self.follower.drain(), now)
            if not lived:
                self._fail(timed_out=False)
            if self.hopeless or self._doomed(now):
                self._fail(timed_out=False)
            if self.spec.deadlines.overdue(self.tracker.current, self.tracker.current_since, now):
                self._fail(timed_out=True)
            if self.tracker.current == "ready":
                info = self._ready_info()
                if info is not None:
                    seconds = self.clock() - self.began
                    timeline = self.tracker.timeline()
                    return RunningServer(
                        self.spec, self.process, timeline=timeline, startup_seconds=seconds, server_info=info
                    )
            self._report(now)
            self.sleep(POLL_SECONDS)

    def _doomed(self, now: float) -> bool:
        if self.doomed_since is None:
            return False
        return now - self.doomed_since > DOOMED_GRACE_SECONDS or now - self.last_line_at > DOOMED_QUIET_SECONDS

    def _follow(self, lines: list[str], now: float) -> None:
        for line in lines:
            self.tracker.feed(line, now)
            self.last_line_at = now
            if line.strip():
                self.last_line = line
            if any(text in line for text in HOPELESS):
                self.hopeless = True
            if self.doomed_since is None and any(text in line for text in DOOMED):
                self.doomed_since = now

    def _report(self, now: float) -> None:
        if self.on_progress is None or now < self.next_progress:
            return
        self.next_progress = now + PROGRESS_SECONDS
        last = [record.text.strip() for record in records(self.last_line)]
        self.on_progress(
            Progress(
                self.spec.cell_id,
                self.tracker.current,
                now - self.tracker.current_since,
                now,
                (last[-1] if last else "")[:200],
            )
        )

    def _ready_info(self) -> dict[str, Any] | None:
        spec = self.spec
        if spec.owns_port == "process" and not ports.listened_by(spec.port, self.process.pids()):
            return None
        with ServerClient(spec.base_url) as client:
            try:
                return client.server_info() if client.health() else None
            except ServerError:
                return None

    def _fail(self, *, timed_out: bool) -> None:
        seconds = self.clock() - self.began
        exit_code = self.process.exit_code
        stopped = self.process.stop(FAILED_STOP_GRACE_SECONDS)
        context = {**self.spec.context, "exit_code": exit_code, "timed_out": timed_out}
        if self.spec.speculative is not None:
            context.setdefault("speculative", self.spec.speculative)
        raise StartupFailure(
            cell_id=self.spec.cell_id,
            diagnosis=diagnose_file(self.spec.log_path, context),
            timeline=self.tracker.timeline(),
            exit_code=exit_code,
            log_path=self.spec.log_path,
            seconds=seconds,
            command=self.spec.command,
            stopped=stopped,
        )
