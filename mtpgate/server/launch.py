"""Launching one server: from the argument list to a ready server, or to a failure that says what broke."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

from mtpgate.server import ports
from mtpgate.server.activity import Sampler
from mtpgate.server.client import CONTROL_SECONDS, HEALTH_SECONDS, ServerClient, ServerError
from mtpgate.server.command import LaunchSpec
from mtpgate.server.ended import Ended
from mtpgate.server.follower import LogFollower
from mtpgate.server.phases import PhaseTracker
from mtpgate.server.process import ServerProcess
from mtpgate.server.progress import Progress
from mtpgate.server.records import records
from mtpgate.server.running import RunningServer, StartupFailure, diagnose_failure
from mtpgate.server.stall import StallWatch

__all__ = ["Progress", "RunningServer", "StartupFailure", "launch"]

POLL_SECONDS = 0.1
PROGRESS_SECONDS = 1.0
DOOMED_QUIET_SECONDS = 2.0
"""A server that announced its end is ended when its log has been quiet for so long: all ranks have then told their
tracebacks, and 0.5.23 would only sleep (5 s "before crash diagnostics") before it kills itself."""
DOOMED_GRACE_SECONDS = 15.0
"""The longest that a server gets after such a line."""
FAILED_STOP_GRACE_SECONDS = 2.0
"""Grace of a launch that has failed already: a server that hangs with a taken port ignores SIGTERM."""
STALLED_STOP_GRACE_SECONDS = 1.0
"""Of one that is ended because of a deadline or a stall: it has nothing left to tell, and is to be diagnosed in 5 s."""

LAST_CHARACTERS = 200
"""Of the log's last line, in progress and in a diagnosis."""
LEAST_ANSWER_SECONDS = 1.0
"""What a ready server gets to answer, however close the deadline is."""

HOPELESS = ("error while attempting to bind on address",)
"""After this line of uvicorn SGLang 0.5.23 neither gets ready nor dies."""
DOOMED = ("hit an exception", "Received sigquit", "SIGQUIT received", "scheduler is dead", "died during initialization")


def launch(
    spec: LaunchSpec,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> RunningServer:
    """Start ``spec`` and wait until it serves.

    Ready means: our own process lives, its log says so, the port is listened on by a process of ours, and ``/health``
    and ``/server_info`` answer. Raises :class:`StartupFailure` when it dies, shows no life in a phase for too long, is
    in it beyond the deadline, or can never get ready; UsageError before anything is started if the port is taken or the
    command cannot be executed. Whatever is raised (KeyboardInterrupt too), no process is left.
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
        self.sampler = Sampler(process.pids)
        # The processes of a container are not descendants of its client.
        self.watch = StallWatch(spec.deadlines, visible=spec.owns_port == "process")
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
            if not lived or self.hopeless or self._doomed(now):
                self._fail()
            self.watch.grown(self.follower.offset, now)
            overdue = self.spec.deadlines.overdue(self.tracker.current, self.tracker.current_since, now)
            if overdue or self._stalled(now):
                self._end(now, overdue=overdue)
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

    def _stalled(self, now: float) -> bool:
        if not self.sampler.due(now):
            return False
        activity = self.sampler.sample(now)
        if activity is None:
            return False
        self.watch.saw(activity, self.tracker.current, now)
        return self.watch.stalled(self.tracker.current, now)

    def _end(self, now: float, *, overdue: bool) -> NoReturn:
        phase, since = self.tracker.current, self.tracker.current_since
        signs = self.watch.signs(phase, now)
        seconds = now - since if overdue else None
        last = self._last_record()
        self._fail(Ended.look(self.spec, self.process, signs, overdue_seconds=seconds, last_line=last))

    def _last_record(self) -> str:
        found = [record.text.strip() for record in records(self.last_line)]
        return (found[-1] if found else "")[:LAST_CHARACTERS]

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
        self.on_progress(
            Progress(
                self.spec.cell_id,
                self.tracker.current,
                now - self.tracker.current_since,
                now,
                self._last_record(),
                self.watch.silent_seconds(now),
                self.watch.signs(self.tracker.current, now).limit_seconds,
            )
        )

    def _ready_info(self) -> dict[str, Any] | None:
        spec = self.spec
        if spec.owns_port == "process" and not ports.listened_by(spec.port, self.process.pids()):
            return None
        # A server that takes the request and does not answer must not hold up the deadline.
        passed = self.clock() - self.began - self.tracker.current_since
        left = max((spec.deadlines.limit("ready") or HEALTH_SECONDS) - passed, LEAST_ANSWER_SECONDS)
        with ServerClient(spec.base_url) as client:
            try:
                healthy = client.health(min(left, HEALTH_SECONDS))
                return client.server_info(min(left, CONTROL_SECONDS)) if healthy else None
            except ServerError:
                return None

    def _fail(self, ended: Ended | None = None) -> NoReturn:
        spec = self.spec
        seconds = self.clock() - self.began
        exit_code = self.process.exit_code
        stopped = self.process.stop(STALLED_STOP_GRACE_SECONDS if ended else FAILED_STOP_GRACE_SECONDS)
        context = {**spec.context, "exit_code": exit_code, "timed_out": ended is not None}
        if ended:
            context["compiling"] = ended.compiling
        if spec.speculative is not None:
            context.setdefault("speculative", spec.speculative)
        diagnosis = diagnose_failure(spec.log_path, context)
        raise StartupFailure(
            cell_id=spec.cell_id,
            diagnosis=ended.explain(diagnosis) if ended else diagnosis,
            timeline=self.tracker.timeline(),
            exit_code=exit_code,
            log_path=spec.log_path,
            seconds=seconds,
            command=spec.command,
            stopped=stopped,
            stacks=ended.stacks if ended else None,
        )
