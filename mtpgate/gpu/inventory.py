"""Which GPUs this process may use, as NVML reports them.

The NVML binding is passed in, so that any machine can be described without having it. Memory is in GiB of NVML, which
counts a little more than PyTorch sees (the driver's reserve: about 0.6 GiB on a 96 GB card).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GIB = 1 << 30


@dataclass(frozen=True)
class Gpu:
    """One visible GPU."""

    index: int
    """NVML's index on this machine, whatever CUDA_VISIBLE_DEVICES renumbers it to."""
    uuid: str
    name: str
    total_gib: float
    free_gib: float
    processes: tuple[int, ...] = ()
    """Process ids that hold memory on it (of other containers too, where the driver tells)."""


@dataclass(frozen=True)
class Inventory:
    """The visible GPUs in the order in which CUDA numbers them; ``why_none`` says why there are none."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    why_none: str | None = None

    def __str__(self) -> str:
        """``2 x NVIDIA H100 80GB HBM3 (79.6 GiB)``, or why there is none."""
        kinds: dict[str, int] = {}
        for gpu in self.gpus:
            kind = f"{gpu.name} ({gpu.total_gib:.1f} GiB)"
            kinds[kind] = kinds.get(kind, 0) + 1
        listed = " + ".join(f"{count} x {kind}" for kind, count in kinds.items())
        return listed or f"no GPU ({self.why_none or 'none found'})"


def read_inventory(nvml: Any = None, environ: Mapping[str, str] = os.environ) -> Inventory:
    """The GPUs that a CUDA process with this environment would see; an empty inventory with the reason if none.

    ``nvml`` is the ``pynvml`` module or something with its functions; None imports it. Never raises for a machine
    without NVML: that is an answer, not an error.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return Inventory(why_none="the NVML binding is not installed (pip install nvidia-ml-py)")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Inventory(why_none=f"NVML: {error}")
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        found = [_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        return Inventory(why_none=f"NVML: {error}")
    finally:
        nvml.nvmlShutdown()
    if not found:
        return Inventory(driver=driver, why_none="the driver reports no GPU")
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    gpus = tuple(found) if visible is None else visible_gpus(found, visible)
    return Inventory(gpus, driver, None if gpus else f"CUDA_VISIBLE_DEVICES={visible} hides all {len(found)} GPUs")


def visible_gpus(found: list[Gpu], visible: str) -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, in its order.

    Entries are indices or beginnings of UUIDs. The first entry that names no GPU ends the list (CUDA C++ Programming
    Guide, "CUDA Environment Variables"): an unknown index, -1, an empty one, a beginning that several UUIDs share.
    So does a GPU that is named again, which must not be leased twice.
    """
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        matching = [gpu for gpu in found if _named(gpu, entry)]
        if len(matching) != 1 or matching[0] in chosen:
            break
        chosen.append(matching[0])
    return tuple(chosen)


def _named(gpu: Gpu, entry: str) -> bool:
    if entry.isdecimal():
        return gpu.index == int(entry)
    return bool(entry) and entry != "GPU-" and gpu.uuid.startswith(entry)


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index=index,
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        name=_text(nvml.nvmlDeviceGetName(handle)),
        total_gib=memory.total / GIB,
        free_gib=memory.free / GIB,
        processes=_processes(nvml, handle),
    )


def _processes(nvml: Any, handle: Any) -> tuple[int, ...]:
    """Not every driver and container may list them; memory still tells whether a GPU is free."""
    try:
        return tuple(sorted({process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}))
    except nvml.NVMLError:
        return ()


def _text(value: str | bytes) -> str:
    """Old bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value
