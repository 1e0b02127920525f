"""Processes of a launch, found by parentage and by the mark in their environment."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

MARK = "MTPGATE_LAUNCH"
"""Environment variable that every process of a launch inherits; its value is unique to the launch."""


@dataclass(frozen=True)
class Stray:
    """A process that carries the mark of some launch."""

    pid: int
    name: str
    mark: str
    started: float
    """Unix time, seconds."""


def marked(mark: str | None = None) -> list[Stray]:
    """This user's live processes with the mark of launch ``mark``, or of any launch; never the calling process."""
    found = []
    for process in psutil.process_iter():
        try:
            value = process.environ().get(MARK)
            if value is None or process.pid == os.getpid() or (mark is not None and value != mark):
                continue
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(Stray(process.pid, process.name(), value, process.create_time()))
        except (psutil.Error, OSError):
            continue
    return found


def kill_marked(mark: str, wait_seconds: float = 5.0) -> list[str]:
    """SIGKILL what carries the mark of launch ``mark``; ``pid name`` of each."""
    killed = []
    processes = []
    for stray in marked(mark):
        try:
            process = psutil.Process(stray.pid)
            process.kill()
        except psutil.Error:
            continue
        processes.append(process)
        killed.append(f"{stray.pid} {stray.name}")
    psutil.wait_procs(processes, timeout=wait_seconds)
    return killed


def family(pid: int) -> frozenset[int]:
    """``pid`` and all its live descendants (zombies are not); empty when it is gone."""
    try:
        process = psutil.Process(pid)
        members = [process, *process.children(recursive=True)]
    except psutil.Error:
        return frozenset()
    return frozenset(member.pid for member in members if _lives(member))


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
