"""Measurements as JSON lines, raw timestamps included: one line holds one measurement.

Times keep their full precision (a float's shortest form that reads back equal). The arrivals of a request are two
lists side by side, which is a third of the size of a list of objects. NaN (a measurement without a repeat) is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from mtpgate.errors import UsageError
from mtpgate.load.measurement import Arrival, Distribution, Measurement, Repeat, RequestRecord, SteadyState

FORMAT = 1
"""Raised when a reader of the old form would misread the new one."""


def to_json(measurement: Measurement) -> str:
    """One line without a line feed."""
    content = {"format": FORMAT} | _shallow(measurement)
    content["repeats"] = [
        _shallow(repeat)
        | {
            "records": [_record(record) for record in repeat.records],
            "steady": asdict(repeat.steady) if repeat.steady else None,
        }
        for repeat in measurement.repeats
    ]
    content["distributions"] = {name: asdict(figures) for name, figures in measurement.distributions.items()}
    return json.dumps(_no_nan(content), separators=(",", ":"), allow_nan=False)


def from_json(line: str) -> Measurement:
    """The measurement that :func:`to_json` wrote.

    Raises:
        ValueError: the line is not JSON, not of this format, or lacks a field.
    """
    content = json.loads(line)
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise ValueError(f"not a measurement of format {FORMAT}")
    try:
        for figure in ("output_tokens_per_second", "ttft_p50_seconds", "tpot_p50_seconds"):
            content[figure] = math.nan if content[figure] is None else content[figure]
        known = content.get("distributions") or {}
        return Measurement(
            **content
            | {
                "repeats": tuple(_repeat(repeat) for repeat in content["repeats"]),
                "distributions": {name: Distribution(**figures) for name, figures in known.items()},
            }
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a complete measurement: {error!r}") from error


def append(path: Path, measurement: Measurement) -> None:
    """Add one line to ``path``; the folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(to_json(measurement) + "\n")


def read(path: Path) -> tuple[Measurement, ...]:
    """All measurements of a file.

    Raises:
        UsageError: a line cannot be read; the message names file and line.
    """
    measurements = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line:
            continue
        try:
            measurements.append(from_json(line))
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
    return tuple(measurements)


def _shallow(value: Measurement | Repeat) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _record(record: RequestRecord) -> dict[str, Any]:
    content = {field.name: getattr(record, field.name) for field in fields(record)}
    content["arrivals"] = {
        "time": [arrival.time for arrival in record.arrivals],
        "completion_tokens": [arrival.completion_tokens for arrival in record.arrivals],
    }
    return content


def _repeat(content: Mapping[str, Any]) -> Repeat:
    return Repeat(
        **dict(content)
        | {
            "records": tuple(_read_record(record) for record in content["records"]),
            "ttft_seconds": tuple(content["ttft_seconds"]),
            "tpot_seconds": tuple(content["tpot_seconds"]),
            "steady": SteadyState(**content["steady"]) if content.get("steady") else None,
        }
    )


def _read_record(content: Mapping[str, Any]) -> RequestRecord:
    pairs = zip(content["arrivals"]["time"], content["arrivals"]["completion_tokens"], strict=True)
    return RequestRecord(
        **dict(content)
        | {
            "arrivals": tuple(Arrival(time, count) for time, count in pairs),
            "output_ids": tuple(content["output_ids"]),
        }
    )


def _no_nan(content: dict[str, Any]) -> dict[str, Any]:
    return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in content.items()}
