"""The small process between the suite and a server: nothing that the server started outlives it.

Started as ``python -I -S guardian.py CONTROL_FD STATUS_FD -- command ...`` (standard library only, no import of this
package, so that it starts in milliseconds and in any directory). It

* becomes a *child subreaper*: whatever the server forks, double-forks or daemonizes becomes a descendant of it;
* starts the command in a session of its own, with ``PR_SET_PDEATHSIG = SIGKILL`` in case the guardian is killed;
* reads ``CONTROL_FD``: a line ``stop SECONDS`` asks for SIGTERM to the command and, SECONDS later, SIGKILL to all that
  is left. End of file means that the suite is gone (even by ``kill -9``), and is answered likewise, within a second;
* writes to ``STATUS_FD``: ``pid N`` after the start, ``error TEXT`` if there was none, ``exit N`` when the command
  ended (negative: by a signal), ``survivor N NAME`` for each descendant that had to be killed after that.

Descendants are told to die by their parent alone, while they are unreaped children or found below it in ``/proc``:
no process that was not started here is ever signalled.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

ORPHAN_GRACE_SECONDS = 1.0
"""From SIGTERM to SIGKILL once the suite is gone: a container client passes SIGTERM on, and nobody waits for more."""
AFTER_EXIT_GRACE_SECONDS = 0.5
"""What the children of a server that has exited get to write their last lines."""
KILL_SECONDS = 10.0
"""How long killed processes may take to vanish (a process in a GPU driver call dies only when the call returns)."""


def prctl(option: int, value: int) -> None:
    """Call ``prctl(2)``; OSError when the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def descendants(root: int) -> dict[int, str]:
    """Pid and name of each live process below ``root``; zombies are left out."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text("utf-8", "replace")
        except OSError:
            continue
        # The name stands in parentheses and may contain spaces and parentheses.
        name, _, rest = text[text.index("(") + 1 :].rpartition(")")
        state, parent = rest.split()[:2]
        if state != "Z":
            parents[int(entry.name)] = (int(parent), name)
    below: dict[int, str] = {}
    grown = True
    while grown:
        grown = False
        for pid, (parent_pid, name) in parents.items():
            if pid not in below and (parent_pid == root or parent_pid in below):
                below[pid] = name
                grown = True
    return below


class Guardian:
    """The state of one guarded command."""

    def __init__(self, control: int, status: int) -> None:
        self.control = control
        self.status = status
        self.pid = 0
        self.exited = False
        self.parent = os.getppid()
        self.buffer = b""

    def say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # Where the suite is gone there is nobody to tell.
            os.write(self.status, (line.replace("\n", " ") + "\n").encode())

    def start(self, command: list[str]) -> bool:
        read_error, write_error = os.pipe()  # Closed by a successful exec.
        guardian = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != guardian:
                    os._exit(127)  # The guardian died before the line above could take effect.
                os.execvp(command[0], command)  # noqa: S606 - an argument list, no shell
            except BaseException as error:  # noqa: BLE001 - this is a forked child: nothing may unwind further
                os.write(write_error, str(error).encode())
            os._exit(127)
        os.close(write_error)
        with os.fdopen(read_error, "rb") as stream:
            error_text = stream.read().decode("utf-8", "replace")
        if error_text:
            os.waitpid(pid, 0)
            self.say(f"error {command[0]}: {error_text}")
            return False
        self.pid = pid
        self.say(f"pid {pid}")
        return True

    def reap(self) -> None:
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.exited = True
                self.say(f"exit {os.waitstatus_to_exitcode(wait_status)}")

    def wait_event(self, seconds: float) -> None:
        """Sleep until a child dies, the suite speaks or ``seconds`` are over."""
        watched = [self.wakeup] + ([self.control] if self.control >= 0 else [])
        ready, _, _ = select.select(watched, [], [], max(seconds, 0.0))
        if self.wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wakeup, 4096)
        self.reap()

    def stop_requested(self) -> float | None:
        """Seconds of grace if the suite asked for a stop or is gone; None otherwise."""
        if os.getppid() != self.parent:
            return ORPHAN_GRACE_SECONDS
        if not select.select([self.control], [], [], 0)[0]:
            return None
        data = os.read(self.control, 4096)
        if not data:
            return ORPHAN_GRACE_SECONDS
        self.buffer += data
        if b"\n" not in self.buffer:
            return None
        word, _, seconds = self.buffer.split(b"\n")[0].decode().partition(" ")
        return float(seconds) if word == "stop" else None

    def end(self, grace_seconds: float, *, terminate: bool) -> None:
        """SIGTERM to the server (if asked), then SIGKILL to every descendant that is left."""
        if terminate and not self.exited:
            # Not to its group: SGLang's main process takes a scheduler that ends on SIGTERM for a crash (exit 137 after
            # 6 s instead of 0 after 1).
            os.kill(self.pid, signal.SIGTERM)
        self.control = -1  # Readable for good once the suite is gone: not worth waking up for any more.
        until = time.monotonic() + grace_seconds
        while not self.exited and time.monotonic() < until:
            self.wait_event(until - time.monotonic())
        if self.exited:  # Its children are then on their own way out, or will never go.
            until = time.monotonic() + AFTER_EXIT_GRACE_SECONDS
            while time.monotonic() < until and descendants(os.getpid()):
                self.wait_event(0.02)
        until = time.monotonic() + KILL_SECONDS
        told: set[int] = set()
        while time.monotonic() < until and (alive := descendants(os.getpid())):
            for pid, name in alive.items():
                if pid not in told:
                    told.add(pid)
                    self.say(f"survivor {pid} {name}")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.wait_event(0.02)
        self.reap()

    def run(self, command: list[str]) -> int:
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.wakeup, wakeup_write = os.pipe()
        for descriptor in (self.wakeup, wakeup_write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wakeup_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # A handler, not SIG_IGN: an ignored signal would stay ignored in the server.
        for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, lambda *_: None)
        if not self.start(command):
            return 127
        while not self.exited:
            grace = self.stop_requested()
            if grace is not None:
                self.end(grace, terminate=True)
                return 0
            self.wait_event(1.0)
        self.end(0.0, terminate=False)
        return 0


def main() -> int:
    control, status, separator, *command = sys.argv[1:]
    if separator != "--" or not command:
        raise SystemExit("usage: guardian.py CONTROL_FD STATUS_FD -- command ...")
    for descriptor in (int(control), int(status)):
        os.set_inheritable(descriptor, False)
    return Guardian(int(control), int(status)).run(command)


if __name__ == "__main__":
    sys.exit(main())
