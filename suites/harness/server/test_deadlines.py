"""Each phase has its own deadline."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from mtpgate.errors import UsageError
from mtpgate.server.command import LaunchSpec
from mtpgate.server.deadlines import (
    CPU_SECONDS,
    CPU_SILENCE_SECONDS,
    DEFAULT_SECONDS,
    DEFAULT_SILENCE_SECONDS,
    Deadlines,
)
from mtpgate.server.diagnosis import PHASES
from mtpgate.server.launch import StartupFailure, launch


def test_every_phase_of_a_start_has_a_deadline() -> None:
    assert set(DEFAULT_SECONDS) == set(PHASES) - {"serving"}
    assert set(CPU_SECONDS) <= set(DEFAULT_SECONDS)


def test_every_phase_has_a_silence_limit_within_its_deadline() -> None:
    assert set(DEFAULT_SILENCE_SECONDS) == set(DEFAULT_SECONDS)
    assert set(CPU_SILENCE_SECONDS) <= set(DEFAULT_SECONDS)
    assert all(DEFAULT_SILENCE_SECONDS[phase] <= DEFAULT_SECONDS[phase] for phase in DEFAULT_SECONDS)
    assert all(CPU_SILENCE_SECONDS[phase] <= CPU_SECONDS[phase] for phase in CPU_SECONDS)


def test_silence_limit_never_exceeds_the_deadline() -> None:
    assert Deadlines.with_overrides({"warmup": 20.0}).silence_limit("warmup") == 20.0
    assert Deadlines.with_overrides({}, {"warmup": 7}).silence_limit("warmup") == 7.0
    assert Deadlines.with_overrides({}).silence_limit("serving") is None


def test_deadline_counts_from_the_begin_of_the_phase() -> None:
    deadlines = Deadlines.with_overrides({"kv_pool": 10})
    assert not deadlines.overdue("kv_pool", since=100.0, now=110.0)
    assert deadlines.overdue("kv_pool", since=100.0, now=110.1)
    assert not deadlines.overdue("serving", since=0.0, now=1e9)


def test_overrides_leave_the_rest() -> None:
    assert Deadlines.with_overrides({"warmup": 1.5}).seconds == {**DEFAULT_SECONDS, "warmup": 1.5}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"wieght_load": 10.0}, "unknown phase 'wieght_load'; the phases are preflight, dist_init, weight_load"),
        ({"weight_load": 0.0}, "'weight_load' must be a positive number of seconds, not 0"),
        ({"weight_load": "10"}, "must be a positive number"),
        ({"weight_load": True}, "must be a positive number"),
        ({"weight_load": float("nan")}, "must be a positive number"),
    ],
)
def test_bad_overrides_are_usage_errors(overrides: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Deadlines.with_overrides(overrides)


def test_bad_silence_limits_are_usage_errors_too() -> None:
    with pytest.raises(UsageError, match="silence limit for unknown phase 'warmupp'; the phases are preflight"):
        Deadlines.with_overrides({}, {"warmupp": 1.0})
    with pytest.raises(UsageError, match="silence limit for phase 'warmup' must be a positive number of seconds"):
        Deadlines.with_overrides({}, {"warmup": -1.0})


def test_launch_measures_with_the_clock_it_is_given(make_spec: Callable[..., LaunchSpec]) -> None:
    ticks = itertools.count(step=100.0)
    with pytest.raises(StartupFailure) as failure:
        # Minutes of this clock are over in a moment of ours.
        launch(make_spec(hang="preflight"), clock=lambda: next(ticks), sleep=lambda _: None)
    assert failure.value.diagnosis.kind == "hang"
    assert failure.value.seconds > DEFAULT_SILENCE_SECONDS["preflight"]
