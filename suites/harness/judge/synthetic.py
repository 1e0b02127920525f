"""Measurements and accepted launches with given figures."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from mtpgate.judge.baselines import BaselineKey, BaselineLaunch
from mtpgate.load.measurement import Measurement, Repeat

KEY = BaselineKey(
    matrix="cpu-small",
    cell="eagle-s1-k1-d2",
    workload="C1 in64 out64 requests4",
    sglang="0.5.23",
    model="small-mtp@1",
    hardware="2 x86-64 cores",
    attention_backend="mtpgate_cpu",
    engine="cpu",
)
WHEN = datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)


def measurement(
    value: float,
    *,
    repeats: Sequence[float] | None = None,
    accept_length: float | None = None,
    void: str | None = None,
) -> Measurement:
    speeds = [value * 0.995, value, value * 1.005] if repeats is None else repeats
    passes = tuple(Repeat((), 0.0, 1.0, speed, (), (), accept_length) for speed in speeds)
    return Measurement(KEY.cell, "C1", 1, 64, 64, passes, value, accept_length, 0.1, 0.02, void)


def launch(
    value: float,
    *,
    repeats: Sequence[float] | None = None,
    accept_length: float | None = None,
    key: BaselineKey = KEY,
    when: datetime.datetime = WHEN,
) -> BaselineLaunch:
    speeds = (value * 0.995, value, value * 1.005) if repeats is None else tuple(repeats)
    return BaselineLaunch(
        key=key, when=when, why="first", tokens_per_second=value, repeats=speeds, accept_length=accept_length
    )
