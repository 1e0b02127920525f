"""The GPUs that a CUDA process would see, from an NVML that is passed in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mtpgate.gpu.inventory import GIB, Inventory, read_inventory

UUIDS = ("GPU-aaaa1111", "GPU-aaab2222", "GPU-cccc3333")


class NVMLError(Exception):
    pass


class Nvml:
    """The functions of ``pynvml`` that an inventory needs."""

    NVMLError = NVMLError

    def __init__(self, *, text: Any = str, fails: str = "", uuids: tuple[str, ...] = UUIDS) -> None:
        self.text, self.fails, self.uuids = text, fails, uuids
        self.is_open = False

    def _may_fail(self, name: str) -> None:
        if name == self.fails:
            raise NVMLError(f"{name} failed")

    def nvmlInit(self) -> None:
        self._may_fail("init")
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlSystemGetDriverVersion(self) -> Any:
        return self.text("580.1")

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self._may_fail("handle")
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=96 * GIB, free=90 * GIB, used=6 * GIB)

    def nvmlDeviceGetUUID(self, handle: int) -> Any:
        return self.text(self.uuids[handle])

    def nvmlDeviceGetName(self, handle: int) -> Any:
        return self.text("NVIDIA X")

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        self._may_fail("processes")
        return [SimpleNamespace(pid=7), SimpleNamespace(pid=5), SimpleNamespace(pid=7)]


def seen(visible: str | None) -> list[int]:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return [gpu.index for gpu in read_inventory(Nvml(), environ).gpus]


def test_a_gpu_is_described_in_gib_with_its_processes() -> None:
    gpu = read_inventory(Nvml(), {}).gpus[1]
    assert (gpu.index, gpu.uuid, gpu.name) == (1, "GPU-aaab2222", "NVIDIA X")
    assert (gpu.total_gib, gpu.free_gib, gpu.processes) == (96.0, 90.0, (5, 7))


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("0,2", [0, 2]),
        ("2, 0", [2, 0]),
        ("", []),
        ("-1", []),
        ("0,-1,2", [0]),
        ("1,9,0", [1]),
        ("GPU-cccc3333", [2]),
        ("GPU-c", [2]),
        ("GPU-aaa", []),
        ("GPU-aaab,0", [1, 0]),
        ("1,1,2", [1]),
        ("nonsense", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(visible: str | None, indices: list[int]) -> None:
    assert seen(visible) == indices


def test_hidden_gpus_are_a_reason_to_have_none() -> None:
    inventory = read_inventory(Nvml(), {"CUDA_VISIBLE_DEVICES": ""})
    assert inventory.why_none == "CUDA_VISIBLE_DEVICES= hides all 3 GPUs"
    assert inventory.driver == "580.1"


@pytest.mark.parametrize("fails", ["init", "handle"])
def test_a_machine_whose_nvml_fails_has_no_gpus_and_a_reason(fails: str) -> None:
    nvml = Nvml(fails=fails)
    assert read_inventory(nvml, {}) == Inventory(why_none=f"NVML: {fails} failed")
    assert not nvml.is_open


def test_a_driver_without_gpus_is_a_reason() -> None:
    assert read_inventory(Nvml(uuids=()), {}).why_none == "the driver reports no GPU"


def test_processes_that_may_not_be_listed_hide_no_gpu() -> None:
    assert [gpu.processes for gpu in read_inventory(Nvml(fails="processes"), {}).gpus] == [(), (), ()]


def test_names_may_come_as_bytes() -> None:
    assert read_inventory(Nvml(text=str.encode), {}).gpus[0].name == "NVIDIA X"


def test_nvml_is_closed_again() -> None:
    nvml = Nvml()
    read_inventory(nvml, {})
    assert not nvml.is_open


def test_an_inventory_names_the_hardware_in_a_few_words() -> None:
    assert str(read_inventory(Nvml(), {})) == "3 x NVIDIA X (96.0 GiB)"
    assert str(Inventory(why_none="no NVML")) == "no GPU (no NVML)"
