"""Launching the stand-in: what the tests of the server room share."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mtpgate.server import ports
from mtpgate.server.command import LaunchSpec, build_command
from mtpgate.server.deadlines import Deadlines
from mtpgate.server.launch import RunningServer, launch
from mtpgate.server.strays import marked

STANDIN = Path(__file__).parents[1] / "standin" / "server.py"

GONE_SECONDS = 5.0
"""A guardian ends a moment after its server."""

EAGLE = (
    "--speculative-algorithm",
    "EAGLE",
    "--speculative-num-steps",
    "3",
    "--speculative-eagle-topk",
    "1",
    "--speculative-num-draft-tokens",
    "4",
)

MakeSpec = Callable[..., LaunchSpec]
Start = Callable[..., RunningServer]


@pytest.fixture
def eagle() -> tuple[str, ...]:
    """The flags of an EAGLE launch at 3/1/4."""
    return EAGLE


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    """``make_spec(flags=(), deadlines={...}, silence={...}, port=N, **behaviour)``: a launch of the stand-in."""

    def make(
        *,
        flags: tuple[str, ...] = (),
        deadlines: dict[str, float] | None = None,
        silence: dict[str, float] | None = None,
        port: int = 0,
        **behaviour: Any,
    ) -> LaunchSpec:
        chosen = port or ports.free_port()
        command = build_command(
            (sys.executable, str(STANDIN)), flags, model_path="some-model", host="127.0.0.1", port=chosen
        )
        return LaunchSpec(
            cell_id="a-cell",
            command=command,
            port=chosen,
            log_path=tmp_path / f"server-{chosen}.log",
            environment={**os.environ, "MTPGATE_STANDIN": json.dumps(behaviour)},
            deadlines=Deadlines.with_overrides(deadlines or {}, silence),
        )

    return make


@pytest.fixture
def start(make_spec: MakeSpec) -> Iterator[Start]:
    """``start(...)``: a running stand-in, stopped after the test; arguments as for ``make_spec``."""
    running: list[RunningServer] = []

    def begin(**arguments: Any) -> RunningServer:
        running.append(launch(make_spec(**arguments)))
        return running[-1]

    yield begin
    for server in running:
        server.stop(2.0)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Every test of this folder ends without a process of its launches."""
    yield
    until = time.monotonic() + GONE_SECONDS
    while (left := launched_below(tmp_path)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left


def launched_below(folder: Path) -> list[str]:
    """Marked processes with a log in ``folder``: other test processes may have launches of their own."""
    return [
        f"{stray.pid} {stray.name} {stray.mark}"
        for stray in marked()
        if any(path.startswith(str(folder)) for path in open_files(stray.pid))
    ]


def open_files(pid: int) -> list[str]:
    try:
        return [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []
