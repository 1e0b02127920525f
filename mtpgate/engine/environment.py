"""What a server process needs to serve on a machine without a GPU: environment, arguments, a fit interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from mtpgate.engine.fault import VARIABLE, Fault

SGLANG_VERSION = "0.5.23"
"""The one version whose internal names the plugin hooks into."""

OVERLAY = Path(__file__).resolve().parent / "overlay"
"""The folder that makes the plugin and ``sgl_kernel`` importable; nothing is installed into the SGLang under test."""

ENGINE_ARGUMENTS: Mapping[str, str | int | float | bool] = MappingProxyType(
    {
        "device": "cpu",
        # The plugin's own: EAGLE refuses SGLang's torch_native, and intel_amx needs AMX instructions.
        "attention_backend": "mtpgate_cpu",
        # In bfloat16 two ways of computing one token round differently, and "the same answer" cannot be asked for.
        "dtype": "float32",
        # The KV pool is resident memory, and would by default take most of the machine's.
        "max_total_tokens": 16384,
    }
)
"""``ServerArgs`` values that every launch of the engine needs; a cell may override ``max_total_tokens``."""

_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        # Without it the wheel takes the CUDA paths, and fails on the first import of a kernel.
        "SGLANG_USE_CPU_ENGINE": "1",
        # With OpenMP's default of spinning threads, one other busy process cuts the throughput 12 to 35 times.
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        # Else num_steps > 1 compiles a helper with g++ in warm-up, which doubles the time to ready.
        "TORCHDYNAMO_DISABLE": "1",
        # The model is a folder: a mistyped path fails at once rather than after a minute of asking the hub.
        "HF_HUB_OFFLINE": "1",
        # transformers would load TensorFlow or JAX where they happen to be installed.
        "USE_TF": "0",
        "USE_FLAX": "0",
        # The wheel's plugin whitelist would otherwise keep ours out where the user's shell sets it.
        "SGLANG_PLUGINS": "mtpgate_engine",
    }
)

_NEEDED = ("torch", "torchvision", "transformers", "xgrammar")
# Asks the other interpreter without importing any of them: 0.1 s instead of 8.
_PROBE = """
import importlib.metadata, importlib.util, sys
try:
    version = importlib.metadata.version("sglang")
except importlib.metadata.PackageNotFoundError:
    version = "-"
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print("answer", version, ",".join(missing) or "-")
"""
_INSTALL = "install it with `make mtp`, or name another interpreter with --sglang-python"


def engine_environment(base: Mapping[str, str], *, fault: Fault | None = None) -> dict[str, str]:
    """The environment of a server process: ``base`` with the overlay in front of PYTHONPATH and the engine's settings.

    ``fault`` breaks the server on purpose; without one, a fault that ``base`` happens to carry is taken out, because a
    server is broken only where a caller says so.
    """
    environment = {name: value for name, value in base.items() if name != VARIABLE}
    environment.update(_SETTINGS)
    inherited = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = os.pathsep.join(part for part in (str(OVERLAY), inherited) if part)
    if fault is not None:
        environment[VARIABLE] = str(fault)
    return environment


def engine_missing(python: Path, *, timeout: float = 30.0) -> str | None:
    """Why the interpreter ``python`` cannot run the engine, in one line with the next step; None where it can.

    Takes about 0.1 s, at most ``timeout`` seconds: package metadata are read, nothing is imported.
    """
    try:
        # In the root folder, because the current one is on the path of a `python -c`.
        answer = subprocess.run(
            [str(Path(shutil.which(python) or python).absolute()), "-c", _PROBE, *_NEEDED],
            cwd=os.sep,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except OSError as error:
        return f"{python} cannot be started ({error.strerror}); name another interpreter with --sglang-python"
    except subprocess.TimeoutExpired:
        return f"{python} gave no answer in {timeout:g} s; name another interpreter with --sglang-python"
    words = answer.stdout.split()
    if answer.returncode != 0 or len(words) != 3 or words[0] != "answer":
        said = (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
        return f"{python} is no working Python ({said[:200]}); name another interpreter with --sglang-python"
    return _what_lacks(python, version=words[1], missing=words[2])


def _what_lacks(python: Path, *, version: str, missing: str) -> str | None:
    if version == "-":
        return f"{python} has no SGLang; {_INSTALL}"
    if version != SGLANG_VERSION:
        return f"{python} has SGLang {version}, the CPU engine needs {SGLANG_VERSION}; {_INSTALL}"
    if missing != "-":
        return f"{python} has SGLang without {missing.replace(',', ', ')}; {_INSTALL}"
    return None
