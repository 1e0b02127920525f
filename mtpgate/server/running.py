"""What a launch ends in: a server that runs, or a failure that carries its diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mtpgate.server.client import ServerClient
from mtpgate.server.command import LaunchSpec
from mtpgate.server.diagnose import diagnose_file
from mtpgate.server.diagnosis import Diagnosis
from mtpgate.server.process import STOP_GRACE_SECONDS, ServerProcess, StopReport
from mtpgate.server.stacks import Stacks
from mtpgate.server.timeline import Timeline


def diagnose_failure(log_path: Path, context: Mapping[str, object]) -> Diagnosis:
    """As ``diagnose_file``, of a server that is known to have failed: a log without a fault does not clear it."""
    diagnosis = diagnose_file(log_path, context)
    if diagnosis.kind != "ok":
        return diagnosis
    code = context.get("exit_code")
    summary = f"serving: the server ended with exit code {code}, and its log says nothing of a fault"
    return replace(diagnosis, phase="serving", kind="child_died", summary=summary)


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
        stacks: Stacks | None = None,
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
        self.stacks = stacks
        """Where its processes were; None if it died by itself."""
        lines = "\n".join(f"  {item.line}: {item.text}" for item in diagnosis.evidence)
        ended = "was ended by the suite" if exit_code is None else f"exited with {exit_code}"
        where = f"; the stacks of its processes: {stacks.path}" if stacks and stacks.path else ""
        super().__init__(
            f"{cell_id} did not start: {diagnosis.kind} in {diagnosis.phase} after {seconds:.1f} s\n"
            f"{diagnosis.summary}\nThe server {ended}; its log: {log_path}{where}" + (f"\n{lines}" if lines else "")
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
        return diagnose_failure(self.log_path, context)

    def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> StopReport:
        """End the server and everything it started; may be called again."""
        self.stop_report = self._process.stop(grace_seconds)
        return self.stop_report
