"""Launches that another tool has measured, and how a measurement of this suite is held against them.

``sglang.bench_serving`` counts all output tokens over the whole pass, ramp-up and tail included, which is lower than
the steady state that this suite takes for the value of a launch. So imported launches have a key of their own, whose
workload ends with ``pass``, and what is judged by them is the whole pass of the measurement. Launches of the suite's
own come first: as soon as one has been accepted, imported ones are not used any more.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from mtpgate.judge.baselines import BaselineKey, BaselineStore, Found
from mtpgate.load.measure import VALUE
from mtpgate.load.measurement import Measurement

IMPORTED = "judged by imported launches: all tokens/s above are of whole passes, ramp-up and tail included"

PASS = "pass"  # noqa: S105 - a pass over the prompts


def pass_key(key: BaselineKey) -> BaselineKey:
    """The key of the same launches, measured over the whole pass."""
    return key.model_copy(update={"workload": f"{key.workload.removesuffix(f' {VALUE}')} {PASS}"})


def whole_pass(measurement: Measurement) -> Measurement | None:
    """The measurement with the tokens/s of its whole passes for its values; None if they are not known."""
    values = [repeat.pass_tokens_per_second for repeat in measurement.repeats]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    repeats = tuple(
        replace(repeat, output_tokens_per_second=value)
        for repeat, value in zip(measurement.repeats, known, strict=True)
    )
    return replace(measurement, repeats=repeats, output_tokens_per_second=statistics.median(known))


def judged_by(key: BaselineKey, measurement: Measurement, baselines: BaselineStore) -> tuple[Found, Measurement]:
    """What a measurement is judged by, and its form that is comparable with that.

    Raises:
        UsageError: the cell's file cannot be read.
    """
    found = baselines.find(key)
    if not found.launches and (passes := whole_pass(measurement)) is not None:
        imported = baselines.find(pass_key(key))
        if imported.launches:
            return imported, passes
    return found, measurement
