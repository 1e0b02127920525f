"""Which matrix runs here, and which of its cells."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from mtpgate.errors import UsageError
from mtpgate.matrix.cell import Cell, Expansion
from mtpgate.matrix.load import load_matrix
from mtpgate.matrix.schema import Hardware, Matrix

KNOWN_BAD = "known_bad.yaml"
MEMORY_TOLERANCE = 0.03
"""NVML's total is larger than PyTorch's by the driver's reserve (95.6 against 94.97 GiB on an RTX PRO 6000), and
differs a little between boards and drivers; the next smaller or larger card of any family is more than 3 % away."""


class GpuLike(Protocol):
    """What is needed of a GPU; :class:`mtpgate.gpu.inventory.Gpu` is one."""

    @property
    def name(self) -> str: ...
    @property
    def total_gib(self) -> float: ...


class InventoryLike(Protocol):
    """What is needed of an inventory; :class:`mtpgate.gpu.inventory.Inventory` is one. ``str`` names the hardware."""

    @property
    def gpus(self) -> Sequence[GpuLike]: ...


def select_cells(expansion: Expansion, patterns: Iterable[str]) -> tuple[Cell, ...]:
    """The cells that any pattern (an id, or a shell-style pattern) matches, in the expansion's order.

    No pattern selects all. UsageError for each pattern that matches no cell: the reason if it names pruned ones, else
    the nearest ids.
    """
    wanted = list(patterns)
    if not wanted:
        return expansion.cells
    faults = [
        _no_match(expansion, pattern)
        for pattern in wanted
        if not any(fnmatch.fnmatchcase(cell.id, pattern) for cell in expansion.cells)
    ]
    if faults:
        raise UsageError("\n".join(faults))
    return tuple(cell for cell in expansion.cells if any(fnmatch.fnmatchcase(cell.id, pattern) for pattern in wanted))


def _no_match(expansion: Expansion, pattern: str) -> str:
    pruned = [item for item in expansion.pruned if fnmatch.fnmatchcase(item.id, pattern)]
    if pruned:
        reasons = "; ".join(f"{item.id}: {item.reason}" for item in pruned[:3])
        return f"--cell {pattern}: not launched: {reasons}" + ("; ..." if len(pruned) > 3 else "")
    ids = [cell.id for cell in expansion.cells]
    near = difflib.get_close_matches(pattern, ids, n=3, cutoff=0.4) or ids[:5]
    return f"--cell {pattern}: no such cell; nearest: {', '.join(near)} (`python -m mtpgate cells` lists all)"


def matrix_files(folder: Path) -> tuple[Path, ...]:
    """The matrices in a folder, by name: all YAML files but the waivers."""
    return tuple(path for path in sorted(folder.glob("*.yaml")) if path.name != KNOWN_BAD)


def default_matrix(inventory: InventoryLike, folder: Path) -> Path:
    """The one matrix in ``folder`` whose hardware is what was found: GPUs of its kind, or a machine without any.

    UsageError if none or several fit, or if a matrix file is broken.
    """
    matrices = {path: load_matrix(path) for path in matrix_files(folder)}
    fitting = [path for path, matrix in matrices.items() if hardware_fault(matrix.hardware, inventory) is None]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(path.name for path in fitting)
        raise UsageError(f"{len(fitting)} matrices in {folder}/ are for {inventory}: {names}; name one with --matrix")
    raise UsageError(
        f"no matrix in {folder}/ is for {inventory}: write one ({folder}/README.md) or name one with --matrix"
    )


def check_hardware(matrix: Matrix, inventory: InventoryLike, gpus_requested: int | None = None) -> None:
    """UsageError if the machine has fewer GPUs than asked for (``--gpus``) or the matrix is for another machine.

    GPU memory is compared within 3 %. A CPU matrix runs on any machine, as long as no GPUs are asked for. Whether the
    GPUs asked for are enough is a question of the cells that are selected, and not asked here.
    """
    found = len(inventory.gpus)
    if gpus_requested is not None and gpus_requested > found:
        raise UsageError(f"--gpus {gpus_requested}: this machine has {found}: {inventory}")
    if matrix.hardware.kind == "cpu":
        if gpus_requested:
            text = f"matrix {matrix.name} runs on the CPU; leave --gpus out or name another with --matrix"
            raise UsageError(f"--gpus {gpus_requested}: {text}")
        return
    if fault := hardware_fault(matrix.hardware, inventory):
        raise UsageError(f"matrix {matrix.name} is for other hardware: {fault}; choose another with --matrix")


def hardware_fault(hardware: Hardware, inventory: InventoryLike) -> str | None:
    """Why this machine is not what a matrix is for; None if it is.

    A CPU matrix is for machines without a GPU; elsewhere it runs only when it is named (see :func:`check_hardware`).
    """
    if hardware.kind == "cpu":
        return None if not inventory.gpus else f"it is for a machine without a GPU, here is {inventory}"
    wanted = f"{hardware.count} x {' or '.join(hardware.gpu)}"
    named = [gpu for gpu in inventory.gpus if any(fnmatch.fnmatchcase(gpu.name, name) for name in hardware.gpu)]
    if len(named) < hardware.count:
        return f"it needs {wanted}, here is {inventory}"
    if hardware.memory_gib is not None:
        fitting = [gpu for gpu in named if abs(gpu.total_gib / hardware.memory_gib - 1) <= MEMORY_TOLERANCE]
        if len(fitting) < hardware.count:
            return f"it needs {wanted} of {hardware.memory_gib:g} GiB each, here is {inventory}"
    return None
