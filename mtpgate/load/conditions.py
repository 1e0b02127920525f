"""What the machine was like during a load, as it was recorded (:mod:`mtpgate.load.watching`), and its short forms."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mtpgate.gpu.watch import GpuSample
from mtpgate.server.decode_lines import DecodeLines


@dataclass(frozen=True)
class HostSample:
    """The host since the look before. Shares are of all cores' time."""

    busy_share: float
    steal_share: float
    frequency_mhz: float | None


@dataclass(frozen=True)
class OtherProcess:
    """A process that is neither the server's nor the suite's."""

    pid: int
    name: str
    cores: float
    """CPU time / wall time of the load."""


Canary = Mapping[str, Mapping[str, float]]
"""Figures by device: ``{"GPU 0": {"matmul_tflops": ..., "copy_gib_s": ...}}``."""


@dataclass(frozen=True)
class Conditions:
    """All that was recorded of one load."""

    seconds: float = 0.0
    gpus: tuple[tuple[GpuSample, ...], ...] = ()
    """One look at all GPUs after the other."""
    host: tuple[HostSample, ...] = ()
    cores: int = 1
    other_cores: float = 0.0
    """Cores that neither the server nor the suite used, on average."""
    others: tuple[OtherProcess, ...] = ()
    """The busiest of them that still ran at the end."""
    server_pids: frozenset[int] = frozenset()
    canary_before: Canary = field(default_factory=dict)
    canary_after: Canary = field(default_factory=dict)
    canary_note: str = ""
    """Why a canary could not be run; empty if it was, or was not asked for."""
    decode: DecodeLines = field(default_factory=DecodeLines)


@dataclass(frozen=True)
class Judged:
    """What the conditions mean for the measurement; it counts if nothing but remarks is there."""

    machine: tuple[str, ...] = ()
    """Why it does not count, where the machine is at fault."""
    server: tuple[str, ...] = ()
    """Why it does not count, where the server did not run as it was launched to."""
    remarks: tuple[str, ...] = ()


def in_short(found: Conditions, judged: Judged) -> str:
    """The conditions in a line for the page: remarks first, then the figures."""
    parts = [*judged.remarks]
    clocks = [sample.clock_sm_mhz for look in found.gpus for sample in look if sample.clock_sm_mhz is not None]
    if clocks:
        parts.append(f"SM clock {statistics.median(clocks):.0f} MHz ({min(clocks)} to {max(clocks)})")
    watts = [sample.power_watts for look in found.gpus for sample in look if sample.power_watts is not None]
    if watts:
        parts.append(f"{statistics.median(watts):.0f} W a GPU")
    heat = [s.temperature_celsius for look in found.gpus for s in look if s.temperature_celsius is not None]
    if heat:
        parts.append(f"up to {max(heat)} °C")
    if found.host:
        parts.append(f"CPU {mean(found.host, 'busy_share'):.0%} busy, {mean(found.host, 'steal_share'):.1%} stolen")
    return "; ".join(parts)


def figures(found: Conditions) -> dict[str, float]:
    """The figures by which two launches' conditions are compared; only those that are known."""

    def median(values: list[float | int | None]) -> float | None:
        known = [value for value in values if value is not None]
        return float(statistics.median(known)) if known else None

    samples = [sample for look in found.gpus for sample in look]
    told = {
        "clock_sm_mhz": median([sample.clock_sm_mhz for sample in samples]),
        "clock_mem_mhz": median([sample.clock_mem_mhz for sample in samples]),
        "power_watts": median([sample.power_watts for sample in samples]),
        "temperature_celsius": median([sample.temperature_celsius for sample in samples]),
        "cpu_frequency_mhz": median([sample.frequency_mhz for sample in found.host]),
        "other_cores": found.other_cores if found.host else None,
        "steal_share": mean(found.host, "steal_share") if found.host else None,
    }
    for figure in {name for values in found.canary_before.values() for name in values}:
        # The slowest device sets the pace of all.
        told[f"canary_{figure}"] = min(values[figure] for values in found.canary_before.values() if figure in values)
    return {name: round(value, 4) for name, value in told.items() if value is not None}


def as_json(found: Conditions, judged: Judged) -> dict[str, Any]:
    """All that was recorded, for the raw data: GPU looks by column."""
    names = ("clock_sm_mhz", "clock_mem_mhz", "power_watts", "temperature_celsius", "clocks_event_reasons", "free_gib")
    columns = [
        {"index": samples[0].index, **{name: [getattr(sample, name) for sample in samples] for name in names}}
        for samples in zip(*found.gpus, strict=True)
    ]
    return {
        "seconds": found.seconds,
        "gpus": columns,
        "host": [asdict(sample) for sample in found.host],
        "cores": found.cores,
        "other_cores": found.other_cores,
        "others": [asdict(process) for process in found.others],
        "canary_before": {device: dict(values) for device, values in found.canary_before.items()},
        "canary_after": {device: dict(values) for device, values in found.canary_after.items()},
        "canary_note": found.canary_note,
        "decode": {
            "lines": len(found.decode.batches),
            "eager": sum(batch.graph is False for batch in found.decode.batches),
            "queued": sum(bool(batch.queued) for batch in found.decode.batches),
            "retracted": found.decode.retracted,
        },
        "figures": figures(found),
        "short": in_short(found, judged),
        "void": {"machine": list(judged.machine), "server": list(judged.server)},
        "remarks": list(judged.remarks),
    }


def mean(samples: Sequence[HostSample], name: str) -> float:
    """Of one field over the looks at the host."""
    return statistics.fmean(getattr(sample, name) for sample in samples)
