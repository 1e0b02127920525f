"""Where the Python processes of a launch are, by py-spy, before a launch that hangs is ended.

py-spy (MIT) reads another process's memory: it needs no help from the process, which may hang in a driver's call. It is
optional. Where it is missing or may not look (ptrace of a container or of Yama), one line says so instead.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

DUMP_SECONDS = 1.5
"""For all processes together. A stall is to be diagnosed 5 s after its limit, and the launch has to be ended, too. A
dump took 0.04 s of a bare interpreter; large ones have more threads, and libraries to look through."""
MOST_PROCESSES = 24
"""Eight ranks, their main process and detokenizer, some helpers; the many workers of a compiler are not worth it."""
MOST_FRAMES = 4
RANK = re.compile(r"scheduler|rank|worker|\bTP\d", re.IGNORECASE)
"""In the title of a process that is a rank. SGLang sets it: ``sglang::scheduler_TP3``."""
THREAD = re.compile(r"Thread \S+ \(.*?\)(?:: \"(?P<name>.*)\")?")
FRAME = re.compile(r" {4}(?P<function>.+) \((?P<place>.+)\)")


@dataclass(frozen=True)
class Stacks:
    """What came of it."""

    path: Path | None
    """The file with all stacks; None if there are none."""
    summary: str
    """One line: which process is where, or why there is nothing."""


@dataclass(frozen=True)
class _Dump:
    pid: int
    title: str
    text: str
    failed: bool

    @property
    def frames(self) -> tuple[str, ...]:
        """The innermost frames of its main thread, as ``function (file:line)``."""
        return main_thread_frames(self.text)


def find_py_spy(command: Sequence[str]) -> Path | None:
    """py-spy from the PATH, beside this interpreter, or beside the first word of the server's ``command``."""
    if found := shutil.which("py-spy"):
        return Path(found)
    server = shutil.which(command[0]) if command else None
    for folder in [Path(sys.executable).parent] + ([Path(server).parent] if server else []):
        if found := shutil.which("py-spy", path=str(folder)):
            return Path(found)
    return None


def dump_stacks(pids: Iterable[int], target: Path, *, py_spy: Path | None, seconds: float = DUMP_SECONDS) -> Stacks:
    """Write the stacks of the Python processes among ``pids`` to ``target``, in ``seconds`` at most. Never raises."""
    if py_spy is None:
        return Stacks(None, "no stacks: py-spy is not installed (pip install py-spy)")
    chosen = sorted(filter(None, map(_python_title, pids)), key=lambda item: (not RANK.search(item[1]), item[0]))
    if not chosen:
        return Stacks(None, "no stacks: no Python process of the launch can be seen from here")
    try:
        dumps = _dump_all(chosen[:MOST_PROCESSES], py_spy, time.monotonic() + seconds)
        target.write_text("".join(_section(dump) for dump in dumps), encoding="utf-8")
    except OSError as error:
        return Stacks(None, f"no stacks: {error}")
    told = [dump for dump in dumps if not dump.failed]
    if not told:
        return Stacks(target, f"no stacks: {py_spy.name} failed: {_reason(dumps[0].text)}")
    odd = most_interesting(told)
    where = " < ".join(odd.frames[:MOST_FRAMES]) or "outside of Python"
    return Stacks(target, f"{odd.title} (pid {odd.pid}) is in {where}")


def main_thread_frames(text: str) -> tuple[str, ...]:
    """The main thread's frames in what ``py-spy dump`` printed, innermost first; the first thread's without names."""
    threads: list[tuple[str | None, list[str]]] = []
    for line in text.splitlines():
        if match := THREAD.match(line):
            threads.append((match["name"], []))
        elif threads and (match := FRAME.match(line)):
            threads[-1][1].append(f"{match['function']} ({match['place']})")
    main = [frames for name, frames in threads if name == "MainThread"] or [frames for _, frames in threads]
    return tuple(main[0]) if main else ()


def most_interesting(dumps: Sequence[_Dump]) -> _Dump:
    """The process to look at first: of the ranks, if there are any, the one that is where the fewest are.

    Ranks march in step. In a hang most of them wait at the same place for the one that did not come.
    """
    ranks = [dump for dump in dumps if RANK.search(dump.title)] or list(dumps)
    places = Counter(dump.frames[:MOST_FRAMES] for dump in ranks)
    return min(ranks, key=lambda dump: places[dump.frames[:MOST_FRAMES]])


def _python_title(pid: int) -> tuple[int, str] | None:
    """``pid`` and a title, for a process that runs Python."""
    try:
        process = psutil.Process(pid)
        if not Path(process.exe()).name.startswith("python"):
            return None
        words = process.cmdline()
        name = process.name()
    except (psutil.Error, OSError):
        return None
    # A title that the process set stands in place of its command line, in one word.
    return pid, words[0] if len([word for word in words if word]) == 1 and words[0] else name


def _dump_all(chosen: Sequence[tuple[int, str]], py_spy: Path, until: float) -> list[_Dump]:
    running: list[tuple[int, str, IO[bytes], subprocess.Popen[bytes]]] = []
    with contextlib.ExitStack() as stack:
        for pid, title in chosen:
            output = stack.enter_context(tempfile.TemporaryFile())
            command = [str(py_spy), "dump", "--pid", str(pid)]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            stack.callback(_end, process)
            running.append((pid, title, output, process))
        return [_finish(pid, title, output, process, until) for pid, title, output, process in running]


def _finish(pid: int, title: str, output: IO[bytes], process: subprocess.Popen[bytes], until: float) -> _Dump:
    try:
        failed = process.wait(max(0.0, until - time.monotonic())) != 0
    except subprocess.TimeoutExpired:
        failed = True
        _end(process)
    output.seek(0)
    text = output.read().decode("utf-8", "replace")
    return _Dump(pid, title, text or "py-spy did not answer in time\n", failed)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def _section(dump: _Dump) -> str:
    return f"== {dump.title} (pid {dump.pid})\n{dump.text.rstrip()}\n\n"


def _reason(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "it said nothing")
    return f"{first[:200]}{'' if 'ermission' not in first else ' (it needs root or the capability SYS_PTRACE)'}"
