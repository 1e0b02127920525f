"""A stalled launch is ended in time, by what its processes do, and its diagnosis says so; so is a dead one.

The stand-in's last output is the begin of the phase that it hangs or dies in, and it ignores SIGTERM: the date of its
log is when the silence began.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtpgate.server.command import LaunchSpec
from mtpgate.server.launch import Progress, StartupFailure, launch
from mtpgate.server.stall import BUSY_FACTOR

DIAGNOSED_SECONDS = 5.0
"""The promise: after the limit of its phase for a stall, after its end for a death."""
LIMIT = 1.5
DEADLINE = 60.0

MakeSpec = Callable[..., LaunchSpec]
Hang = Callable[..., tuple[StartupFailure, float]]


@pytest.fixture
def hang(make_spec: MakeSpec, eagle: tuple[str, ...]) -> Hang:
    """``hang(how, phase, deadline=, ...)``: the failure, and the seconds from the begin of the silence until it."""

    def run(
        how: str, phase: str = "weight_load", *, deadline: float = DEADLINE, **more: Any
    ) -> tuple[StartupFailure, float]:
        spec = make_spec(
            flags=eagle,
            device="gpu",
            silence={phase: LIMIT},
            deadlines={phase: deadline},
            hang=phase,
            hang_how=how,
            ignore_sigterm=True,
        )
        with pytest.raises(StartupFailure) as failure:
            launch(spec, **more)
        return failure.value, time.time() - spec.log_path.stat().st_mtime

    return run


@pytest.mark.parametrize("phase", ["preflight", "draft_load", "capture_target_verify"])
def test_idle_launch_is_diagnosed_within_the_limit_of_its_phase(hang: Hang, phase: str) -> None:
    failure, seconds = hang("idle", phase)
    assert (failure.diagnosis.phase, failure.diagnosis.kind) == (phase, "hang")
    assert failure.diagnosis.summary.startswith(f"hang in {phase}: no output for ")
    assert "(limit 1.5 s), processes idle (" in failure.diagnosis.summary
    assert failure.exit_code is None
    assert LIMIT < seconds < LIMIT + DIAGNOSED_SECONDS


def test_busy_launch_gets_the_longer_limit(hang: Hang) -> None:
    failure, seconds = hang("busy")
    assert (failure.diagnosis.phase, failure.diagnosis.kind) == ("weight_load", "hang")
    assert "(limit 4.5 s), processes busy (" in failure.diagnosis.summary
    assert LIMIT * BUSY_FACTOR < seconds < LIMIT * BUSY_FACTOR + DIAGNOSED_SECONDS


def test_compiling_launch_is_ended_by_its_deadline_alone(hang: Hang) -> None:
    deadline = LIMIT * BUSY_FACTOR + 1.0
    failure, seconds = hang("compile", "capture_target_verify", deadline=deadline)
    assert (failure.diagnosis.phase, failure.diagnosis.kind) == ("capture_target_verify", "slow_compile")
    assert failure.diagnosis.summary.startswith("slow_compile in capture_target_verify: not over after ")
    assert "compilers at work: cicc" in failure.diagnosis.summary
    assert deadline - 1.0 < seconds < deadline + DIAGNOSED_SECONDS


@pytest.mark.parametrize("how", ["compile", "read", "bar"])
def test_slow_launch_gets_ready(make_spec: MakeSpec, how: str) -> None:
    seconds = LIMIT * BUSY_FACTOR + 1.0
    spec = make_spec(silence={"weight_load": LIMIT}, hang="weight_load", hang_how=how, hang_seconds=seconds)
    with launch(spec) as server:
        span = next(span for span in server.timeline.phases if span.phase == "weight_load")
    assert span.end_seconds is not None
    assert span.end_seconds - span.begin_seconds > LIMIT * BUSY_FACTOR


def test_ready_server_that_does_not_answer_does_not_hold_up_its_deadline(make_spec: MakeSpec) -> None:
    began = time.monotonic()
    with pytest.raises(StartupFailure) as failure:
        launch(make_spec(mute=True, deadlines={"ready": LIMIT}, ignore_sigterm=True))
    assert failure.value.diagnosis.kind == "hang"
    timeline = failure.value.timeline
    ready = next(span.begin_seconds for span in timeline.phases if span.phase == "ready")
    assert time.monotonic() - began - ready < LIMIT + DIAGNOSED_SECONDS


def test_cause_that_the_log_gives_stays(make_spec: MakeSpec) -> None:
    # The rank that ran out of memory said so; the process hangs instead of dying.
    spec = make_spec(silence={"kv_pool": LIMIT})
    code = (
        "import sys, time; print('[2026-01-01 00:00:00] Load weight begin. avail mem=9.00 GB'); "
        "print('[2026-01-01 00:00:00] KV Cache is allocated. K size: 1.0 GB, V size: 1.0 GB'); "
        "print('RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.', flush=True); "
        "time.sleep(100)"
    )
    spec = LaunchSpec(
        cell_id=spec.cell_id,
        command=(sys.executable, "-c", code),
        port=spec.port,
        log_path=spec.log_path,
        deadlines=spec.deadlines,
    )
    with pytest.raises(StartupFailure) as failure:
        launch(spec)
    assert failure.value.diagnosis.kind == "not_enough_memory"


def test_stacks_lie_beside_the_log(hang: Hang, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    py_spy = tmp_path / "py-spy"
    (tmp_path / "dump").write_text('Thread 1 (idle): "MainThread"\n    all_reduce (distributed.py:10)\n')
    py_spy.write_text(f"#!/bin/sh\nexec cat {tmp_path}/dump\n")
    py_spy.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    failure, _ = hang("idle")
    assert failure.stacks is not None
    assert failure.stacks.path == failure.log_path.with_name("stacks.txt")
    assert "all_reduce (distributed.py:10)" in failure.stacks.path.read_text()
    assert "is in all_reduce (distributed.py:10)" in failure.diagnosis.summary
    assert f"the stacks of its processes: {failure.stacks.path}" in str(failure)


def test_slow_py_spy_does_not_hold_up_the_diagnosis(
    hang: Hang, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    py_spy = tmp_path / "py-spy"
    py_spy.write_text("#!/bin/sh\nexec sleep 100\n")
    py_spy.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    _, seconds = hang("idle")
    assert seconds < LIMIT + DIAGNOSED_SECONDS


def test_silence_and_its_limit_are_part_of_the_progress(hang: Hang) -> None:
    seen: list[Progress] = []
    hang("idle", on_progress=seen.append)
    assert seen[-1].silent_seconds > 1.0
    assert seen[-1].silence_limit == LIMIT


@pytest.mark.parametrize(
    ("how", "phase"),
    [
        ("exception", "dist_init"),
        ("exit", "weight_load"),
        ("sigkill", "weight_load"),
        ("sigkill", "capture_target_verify"),
        ("oom", "capture_draft_extend"),
        ("not_enough_memory", "kv_pool"),
    ],
)
def test_death_is_diagnosed_within_five_seconds(
    make_spec: MakeSpec, eagle: tuple[str, ...], how: str, phase: str
) -> None:
    spec = make_spec(flags=eagle, device="gpu", die={"phase": phase, "how": how, "code": 3}, children=2, orphans=1)
    with pytest.raises(StartupFailure) as failure:
        launch(spec)
    assert time.time() - spec.log_path.stat().st_mtime < DIAGNOSED_SECONDS
    assert failure.value.diagnosis.phase == phase
    assert failure.value.stacks is None
