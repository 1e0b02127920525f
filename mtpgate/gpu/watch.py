"""Looks at GPUs while they work, in NVML's own fields: clocks, power, temperature, what slows them, who computes.

A field that the driver does not tell (virtual GPUs, containers, old drivers) is None; a look never fails for it.
Process ids are those of the driver, which in a container need not be those that the container sees.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from mtpgate.errors import InfrastructureFault
from mtpgate.gpu.inventory import GIB

REASONS: Mapping[int, str] = {
    # nvml.h, nvmlClocksEventReasons (nvmlClocksThrottleReasons before driver 535).
    0x1: "GpuIdle",
    0x2: "ApplicationsClocksSetting",
    0x4: "SwPowerCap",
    0x8: "HwSlowdown",
    0x10: "SyncBoost",
    0x20: "SwThermalSlowdown",
    0x40: "HwThermalSlowdown",
    0x80: "HwPowerBrakeSlowdown",
    0x100: "DisplayClockSetting",
    0x200: "BoardLimit",
    0x400: "Reliability",
}

SLOWDOWNS = 0x8 | 0x20 | 0x40 | 0x80
"""The reasons that mean a fault of cooling or power supply. The software power cap is how every board that works at its
limit is regulated, so it is told, and does not make a measurement void."""


@dataclass(frozen=True)
class GpuSample:
    """One look at one GPU; the names are NVML's."""

    index: int
    clock_sm_mhz: int | None = None
    clock_mem_mhz: int | None = None
    power_watts: float | None = None
    temperature_celsius: int | None = None
    clocks_event_reasons: int = 0
    """Bits of :data:`REASONS`."""
    free_gib: float | None = None
    processes: frozenset[int] = frozenset()
    """Process ids with a compute context on it."""
    sm_util: Mapping[int, int] = field(default_factory=dict)
    """Per cent of the time that each process has kept SMs busy since the look before, by process id; empty where the
    driver does not tell."""


def reason_names(mask: int) -> tuple[str, ...]:
    """The names of the bits in a mask; unknown bits as hexadecimal."""
    names = tuple(name for bit, name in REASONS.items() if mask & bit)
    rest = mask & ~sum(REASONS)
    return (*names, hex(rest)) if rest else names


class GpuWatch:
    """NVML, open on some GPUs. A context manager.

    Raises InfrastructureFault if NVML or one of the GPUs cannot be opened.
    """

    def __init__(self, uuids: Sequence[str], nvml: Any = None) -> None:
        self._nvml = nvml or importlib.import_module("pynvml")
        self._uuids = uuids
        self._handles: list[tuple[int, Any]] = []
        self._last_seen = 0

    def __enter__(self) -> Self:
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise InfrastructureFault(f"NVML cannot be opened: {error}") from error
        try:
            for uuid in self._uuids:
                handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
                self._handles.append((self._nvml.nvmlDeviceGetIndex(handle), handle))
        except self._nvml.NVMLError as error:
            self._nvml.nvmlShutdown()
            raise InfrastructureFault(f"GPU {uuid}: NVML cannot open it: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._handles.clear()
        self._nvml.nvmlShutdown()

    def look(self) -> tuple[GpuSample, ...]:
        """All the GPUs, now. A few milliseconds."""
        since, self._last_seen = self._last_seen, time.time_ns() // 1000
        return tuple(self._sample(index, handle, since) for index, handle in self._handles)

    def _sample(self, index: int, handle: Any, since: int) -> GpuSample:
        nvml = self._nvml
        power = self._told(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        memory = self._told(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        used = self._told(lambda: nvml.nvmlDeviceGetProcessUtilization(handle, since)) or ()
        busy: dict[int, int] = {}
        for row in used:
            busy[row.pid] = max(busy.get(row.pid, 0), row.smUtil)
        running = self._told(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()
        return GpuSample(
            index=index,
            clock_sm_mhz=self._told(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            clock_mem_mhz=self._told(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            power_watts=None if power is None else power / 1000,
            temperature_celsius=self._told(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            clocks_event_reasons=self._reasons(handle),
            free_gib=None if memory is None else memory.free / GIB,
            processes=frozenset(process.pid for process in running),
            sm_util=busy,
        )

    def _reasons(self, handle: Any) -> int:
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            ask = getattr(self._nvml, name, None)
            if ask is not None and (mask := self._told(functools.partial(ask, handle))) is not None:
                return int(mask)
        return 0

    def _told(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except self._nvml.NVMLError:
            return None
