"""A measurement with the conditions that it was made under: void if they spoil it, and who is at fault then."""

from __future__ import annotations

from dataclasses import replace

from mtpgate.load.conditions import Conditions, as_json
from mtpgate.load.disturbance import Asked, judge_conditions
from mtpgate.load.measurement import Measurement
from mtpgate.server.decode_lines import DecodeLines

DISTURBED = "disturbed: "
MACHINE = "machine"
"""Where a measurement's conditions have those of the machine."""


def under(measurement: Measurement, found: Conditions, asked: Asked) -> Measurement:
    """The measurement with its conditions, void if they spoil it; one that is void already stays so for its reason."""
    found = replace(found, decode=_retractions_counted(found.decode, measurement))
    judged = judge_conditions(found, asked)
    void = measurement.void
    if void is None and (judged.machine or judged.server):
        void = DISTURBED + "; ".join((*judged.machine, *judged.server))
    return replace(measurement, void=void, conditions={**measurement.conditions, MACHINE: as_json(found, judged)})


def _retractions_counted(lines: DecodeLines, measurement: Measurement) -> DecodeLines:
    """The answers count their own retractions (``num_retractions``, in newer versions), whatever the log holds."""
    metas = (record.meta for repeat in measurement.repeats for record in repeat.records)
    told = sum(count for meta in metas if isinstance(count := meta.get("num_retractions"), int))
    return replace(lines, retracted=max(lines.retracted, told))


def disturbed(measurement: Measurement) -> bool:
    """Whether its conditions are what makes it void: worth another try."""
    return measurement.void is not None and measurement.void.startswith(DISTURBED)


def machine_is_at_fault(measurement: Measurement) -> bool:
    """Whether it was disturbed by the machine alone: then it says nothing about the product."""
    machine = measurement.conditions.get(MACHINE)
    return disturbed(measurement) and isinstance(machine, dict) and not machine["void"]["server"]


def in_short(measurement: Measurement) -> str:
    """Its conditions in a line; empty where they were not recorded."""
    machine = measurement.conditions.get(MACHINE)
    return str(machine.get("short", "")) if isinstance(machine, dict) else ""


def condition_figures(measurement: Measurement) -> dict[str, float]:
    """The figures by which its conditions are compared (:func:`mtpgate.load.conditions.figures`); empty without any."""
    machine = measurement.conditions.get(MACHINE)
    return dict(machine["figures"]) if isinstance(machine, dict) else {}
