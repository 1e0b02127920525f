"""Looks at GPUs under load, through an NVML that is passed in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mtpgate.errors import InfrastructureFault
from mtpgate.gpu.inventory import GIB
from mtpgate.gpu.watch import SLOWDOWNS, GpuWatch, reason_names


class NVMLError(Exception):
    pass


class Nvml:
    """The functions of ``pynvml`` that a look needs; ``lacks`` names those that the driver does not support."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, *lacks: str) -> None:
        self.lacks = lacks
        self.is_open = False
        self.since: list[int] = []

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name.startswith("nvml") and name in self.lacks:

            def unsupported(*_: object) -> None:
                raise NVMLError(f"{name}: not supported")

            return unsupported
        return found

    def nvmlInit(self) -> None:
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetIndex(self, handle: str) -> int:
        return int(handle[-1])

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return {1: 1965, 2: 2619}[kind]

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 612_500

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 64

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return 0x44

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x20

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(free=3 * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:
        return [SimpleNamespace(pid=7), SimpleNamespace(pid=9)]

    def nvmlDeviceGetProcessUtilization(self, handle: str, since: int) -> Any:
        self.since.append(since)
        return [SimpleNamespace(pid=7, smUtil=80), SimpleNamespace(pid=7, smUtil=95), SimpleNamespace(pid=9, smUtil=1)]


def test_a_look_has_nvmls_fields_in_their_units() -> None:
    with GpuWatch(["GPU-3", "GPU-5"], Nvml()) as watch:
        first, second = watch.look()
    assert (first.index, second.index) == (3, 5)
    assert (first.clock_sm_mhz, first.clock_mem_mhz, first.power_watts) == (1965, 2619, 612.5)
    assert (first.temperature_celsius, first.free_gib) == (64, 3.0)
    assert reason_names(first.clocks_event_reasons) == ("SwPowerCap", "HwThermalSlowdown")
    assert first.processes == {7, 9}
    assert first.sm_util == {7: 95, 9: 1}


def test_utilization_is_asked_for_since_the_look_before() -> None:
    nvml = Nvml()
    with GpuWatch(["GPU-0"], nvml) as watch:
        watch.look()
        watch.look()
    assert nvml.since[0] == 0 < nvml.since[1]


@pytest.mark.parametrize(
    ("function", "field", "value"),
    [
        ("nvmlDeviceGetClockInfo", "clock_sm_mhz", None),
        ("nvmlDeviceGetPowerUsage", "power_watts", None),
        ("nvmlDeviceGetTemperature", "temperature_celsius", None),
        ("nvmlDeviceGetMemoryInfo", "free_gib", None),
        ("nvmlDeviceGetComputeRunningProcesses", "processes", frozenset()),
        ("nvmlDeviceGetProcessUtilization", "sm_util", {}),
        ("nvmlDeviceGetCurrentClocksEventReasons", "clocks_event_reasons", 0x20),
    ],
)
def test_what_the_driver_does_not_tell_is_left_out(function: str, field: str, value: object) -> None:
    with GpuWatch(["GPU-0"], Nvml(function)) as watch:
        (sample,) = watch.look()
    assert getattr(sample, field) == value
    assert sample.index == 0


def test_nvml_is_closed_whatever_happens() -> None:
    nvml = Nvml()
    with pytest.raises(ValueError, match="stop"), GpuWatch(["GPU-0"], nvml):
        assert nvml.is_open
        raise ValueError("stop")
    assert not nvml.is_open


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_a_gpu_that_cannot_be_opened_is_the_machines_fault(function: str) -> None:
    nvml = Nvml(function)
    with pytest.raises(InfrastructureFault, match=function), GpuWatch(["GPU-0"], nvml):
        pass
    assert not nvml.is_open


def test_the_reasons_are_those_of_the_installed_binding() -> None:
    nvml = pytest.importorskip("pynvml")
    names = {name.removeprefix("nvmlClocksThrottleReason") for name in dir(nvml) if "ClocksThrottleReason" in name}
    assert {name for bit in range(11) for name in reason_names(1 << bit)} <= names
    assert reason_names(SLOWDOWNS) == tuple(
        name
        for name in ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
        if getattr(nvml, f"nvmlClocksThrottleReason{name}") & SLOWDOWNS
    )
    assert reason_names(1 << 40) == (hex(1 << 40),)
