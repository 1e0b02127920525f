"""Ways to get no further, with the signs of life that each gives."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
SIGKILL = 9


def hang(how: str, seconds: float | None) -> None:
    """Do nothing useful for ``seconds`` (None: for ever)."""
    until = float("inf") if seconds is None else time.monotonic() + seconds
    if how == "busy":
        spin(until)
    elif how == "compile":
        compiler(until)
    elif how == "read":
        read(until)
    else:
        while time.monotonic() < until:
            if how == "bar":
                print("\rCapturing batches: step", time.monotonic(), end="", file=sys.stderr, flush=True)
            time.sleep(0.1)


def spin(until: float) -> None:
    while time.monotonic() < until:
        pass


def compiler(until: float) -> None:
    """Wait for a child that looks like NVIDIA's compiler and uses as much CPU time as it can get."""
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
        libc.prctl(PR_SET_NAME, b"cicc", 0, 0, 0)
        spin(until)
        os._exit(0)
    os.waitpid(child, 0)


def read(until: float) -> None:
    """Read a file over and over, as slowly as a disk that is shared with others."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(4 << 20))
        file.flush()
        while time.monotonic() < until:
            Path(file.name).read_bytes()
            time.sleep(0.2)
