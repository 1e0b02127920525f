"""The canary: a short product and copy in a child process, whose change tells that the machine has changed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mtpgate.gpu.watch import GpuSample
from mtpgate.load.conditions import Canary

CHILD = Path(__file__).with_name("canary_child.py")

NEEDED_GIB = 2.0
"""GPU memory that must be free: a CUDA context with its libraries (0.5 to 1 GiB) and 0.6 GiB of operands."""

TIMEOUT_SECONDS = 90.0
"""torch's import and eight CUDA contexts take 10 to 30 s on a cold disk."""


@dataclass(frozen=True)
class CanaryRun:
    """What a canary said, or why there is none."""

    figures: Canary = field(default_factory=dict)
    note: str = ""


def run_canary(
    python: Path,
    *,
    gpus: Sequence[GpuSample] = (),
    environment: Mapping[str, str] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> CanaryRun:
    """Run it with ``python`` on one core of the CPU, or on the GPUs that ``environment`` shows, looked at just now.

    Never raises for a machine where it cannot run: that is a note.
    """
    short = [gpu for gpu in gpus if gpu.free_gib is not None and gpu.free_gib < NEEDED_GIB]
    if short:
        return CanaryRun(note=f"GPU {short[0].index} has {short[0].free_gib:.1f} GiB free, it needs {NEEDED_GIB:g}")
    command = [str(python), str(CHILD), "gpu" if gpus else "cpu"]
    try:
        ended = subprocess.run(
            command,
            env=dict(os.environ if environment is None else environment),
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    except OSError as error:
        return CanaryRun(note=f"{python} cannot be started: {error.strerror}")
    except subprocess.TimeoutExpired:
        return CanaryRun(note=f"it took more than {timeout_seconds:g} s")
    if ended.returncode != 0:
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        return CanaryRun(note=f"it failed: {last[0][:200]}")
    try:
        told = json.loads(ended.stdout)
    except ValueError:
        return CanaryRun(note=f"it said no figures: {ended.stdout[:100]!r}")
    # The child numbers the GPUs that it sees; a person knows NVML's numbers.
    names = {f"GPU {number}": f"GPU {gpu.index}" for number, gpu in enumerate(gpus)}
    return CanaryRun({names.get(device, device): dict(values) for device, values in told.items()})
