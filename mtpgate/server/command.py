"""What is launched, and where: the command line as an argument list, and all else that a launch needs to know."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mtpgate.errors import UsageError
from mtpgate.matrix.cell import ArgumentValue
from mtpgate.server.deadlines import Deadlines

PLACEHOLDERS = ("host", "port", "model", "args")


@dataclass(frozen=True)
class LaunchSpec:
    """One launch. ``environment`` is the complete environment of the server (the launch's mark is added)."""

    cell_id: str
    command: tuple[str, ...]
    port: int
    log_path: Path
    host: str = "127.0.0.1"
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    deadlines: Deadlines = field(default_factory=Deadlines)
    speculative: bool | None = None
    """Whether the cell speculates; None: read it from the log."""
    owns_port: Literal["process", "log"] = "process"
    """How the listener on the port is known for ours. ``process``: it is a descendant of the command. ``log``: the
    command's own log says so (a container, whose processes are not descendants of its client)."""
    arguments: Mapping[str, ArgumentValue] = field(default_factory=dict)
    """The neutral knobs that were asked for; compared with what the server reports."""
    context: Mapping[str, object] = field(default_factory=dict)
    """What the diagnosis may know besides the log (``tp``, ``mem_fraction_static``, ``gpu_total_gib``, ...)."""
    directory: Path | None = None
    pass_fds: tuple[int, ...] = ()
    """Lock descriptors that must stay open as long as the server lives."""

    @property
    def base_url(self) -> str:
        return f"http://{self.host}:{self.port}"


def build_command(
    entry: Sequence[str], flags: Sequence[str], *, model_path: str, host: str, port: int
) -> tuple[str, ...]:
    """The argument list of a launch; never a shell's line.

    ``entry`` is what stands before the flags (``python -m sglang.launch_server``). If it has placeholders it is a
    template instead: ``{host}``, ``{port}`` and ``{model}`` are replaced wherever they stand, and an element that is
    exactly ``{args}`` becomes ``flags``. Raises UsageError for an empty entry, or a template without ``{port}`` or
    ``{args}``.
    """
    if not entry:
        raise UsageError("the server command is empty")
    if not any("{" + name + "}" in part for part in entry for name in PLACEHOLDERS):
        return (*entry, "--model-path", model_path, "--host", host, "--port", str(port), *flags)
    if "{args}" not in entry:
        raise UsageError(f"the server command needs {{args}} as an argument of its own, found {list(entry)}")
    if not any("{port}" in part for part in entry):
        raise UsageError(f"the server command needs {{port}}, found {list(entry)}")
    values = {"{host}": host, "{port}": str(port), "{model}": model_path}
    command: list[str] = []
    for part in entry:
        if part == "{args}":
            command += flags
            continue
        filled = part
        for placeholder, value in values.items():
            filled = filled.replace(placeholder, value)
        command.append(filled)
    return tuple(command)
