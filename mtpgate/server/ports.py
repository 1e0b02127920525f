"""Loopback ports: a free one, whether one is taken, and who listens on it."""

from __future__ import annotations

import random
import socket
from collections.abc import Container
from pathlib import Path

import psutil

from mtpgate.errors import InfrastructureFault, UsageError

LOWEST_PORT = 20000
DEFAULT_EPHEMERAL_START = 32768
PORTS_ABOVE = 1100
"""SGLang derives further ports from its own (up to 1,000 above it): all of them stay below the ephemeral range."""


def free_port(host: str = "127.0.0.1", *, avoid: Container[int] = ()) -> int:
    """A port that nobody holds, below the kernel's ephemeral range.

    An ephemeral port could be given to any outgoing connection in the minutes before the server binds it.
    Raises InfrastructureFault when none is found.
    """
    highest = max(_ephemeral_start() - PORTS_ABOVE, LOWEST_PORT + 1000)
    for port in random.SystemRandom().sample(range(LOWEST_PORT, highest), 200):
        if port not in avoid and is_free(host, port):
            return port
    raise InfrastructureFault(f"no free TCP port on {host} among 200 tried between {LOWEST_PORT} and {highest}")


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return DEFAULT_EPHEMERAL_START


def is_free(host: str, port: int) -> bool:
    """Whether a server could bind ``port`` now, and nobody answers it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As uvicorn binds: a port in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return not _answers(host, port)


def _answers(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


def require_free(host: str, port: int) -> None:
    """Raise UsageError, naming the holder where it can be seen, if ``port`` is taken."""
    if is_free(host, port):
        return
    holders = ", ".join(_describe(pid) for pid in sorted(listeners(port))) or "a process that this user cannot see"
    raise UsageError(f"port {port} on {host} is taken by {holders}; stop it or choose another port")


def _describe(pid: int) -> str:
    try:
        return f"{psutil.Process(pid).name()} (pid {pid})"
    except psutil.Error:
        return f"pid {pid}"


def listeners(port: int) -> frozenset[int]:
    """Process ids that listen on TCP ``port``, as far as this user may see."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return frozenset()
    return frozenset(
        connection.pid
        for connection in connections
        if connection.status == psutil.CONN_LISTEN
        and connection.laddr
        and connection.laddr.port == port
        and connection.pid is not None
    )


def listened_by(port: int, pids: frozenset[int]) -> bool:
    """Whether one of ``pids`` listens on TCP ``port``."""
    return bool(listeners(port) & pids)
