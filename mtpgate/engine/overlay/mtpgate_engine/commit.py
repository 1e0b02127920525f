"""Carries out the fault that the environment asks for, by hooks on the functions of SGLang where it is to happen."""

# ruff: noqa: PLC0415 (SGLang is imported late: it is being imported itself, or not there, when this module is)

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch

from . import fault_kv, fault_model, fault_output, oom, tree
from .fault import VARIABLE, Fault

logger = logging.getLogger(__name__)

# The figures of a graph capture that ran out of memory on a 94.97 GiB GPU, so that a diagnosis has numbers to find.
_OOM_TEXT = (
    "CUDA out of memory. Tried to allocate 7.50 GiB. GPU 0 has a total capacity of 94.97 GiB of which 2.30 GiB is "
    "free. Including non-PyTorch memory, this process has 92.67 GiB memory in use. Of the allocated memory 90.91 GiB "
    "is allocated by PyTorch, and 412.62 MiB is reserved by PyTorch but unallocated. If reserved but unallocated "
    "memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)


def requested_fault() -> Fault | None:
    """The fault of this process's environment; None where the variable is unset or empty."""
    text = os.environ.get(VARIABLE, "")
    return Fault.parse(text) if text else None


def arm(fault: Fault) -> None:
    """Install the hooks for ``fault`` in this process, which must be the one that runs the model."""
    if fault.action == "accept_wrong":
        tree.wrong_every = int(fault.value or 1)
    else:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        for target, hook in hooks(fault):
            HookRegistry.register(target, hook, HookType.AROUND)
    logger.warning("mtpgate: this server is broken on purpose: %s=%s", VARIABLE, fault)


def hooks(fault: Fault) -> tuple[tuple[str, Callable[..., Any]], ...]:
    """Where in SGLang the fault happens, and the AROUND hooks that make it happen there."""
    nth = int(fault.value or 1)
    found: dict[str, Callable[[], tuple[tuple[str, Callable[..., Any]], ...]]] = {
        "mix_slots": lambda: fault_kv.mix_slots(nth),
        "stale_kv": lambda: fault_kv.stale_kv(nth),
        "drop_bonus": lambda: fault_output.drop_bonus(nth),
        "count_high": fault_output.count_high,
        "ignore_stop": fault_output.ignore_stop,
        "nan": lambda: fault_model.nan_once(nth),
        "random": fault_model.random_draft,
        "hot": lambda: fault_model.hotter(float(fault.value or 1.0)),
    }
    return found[fault.action]() if fault.action in found else (_hook(fault),)


def _hook(fault: Fault) -> tuple[str, Callable[..., Any]]:
    """The same for a fault that slows the engine down or strikes at one moment of its start."""
    runner = "sglang.srt.model_executor.model_runner"
    if fault.action == "slow":
        share = float(fault.value or 0.0)

        def slowed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            result = original(*args, **kwargs)
            time.sleep((time.perf_counter() - started) * share)
            return result

        return f"{runner}.ModelRunner.forward", slowed

    # Close to what SGLang finds before it loads the weights.
    available = psutil.virtual_memory().available / 2**30

    def broken(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if _is_draft(args, kwargs) == (fault.point == "draft_weights"):
            _strike(fault, available)
        return original(*args, **kwargs)

    return {
        "weights": f"{runner}.load_model_with_memory_saver",
        "draft_weights": f"{runner}.load_model_with_memory_saver",
        "pool": "sglang.srt.mem_cache.memory_pool.MHATokenToKVPool._create_buffers",
        "capture": "sglang.srt.model_executor.cpu_graph_runner.CPUGraphRunner.capture_one_batch_size",
        "first_forward": f"{runner}.ModelRunner.forward",
    }[fault.point], broken


def _is_draft(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the hooked call is the draft model's: a keyword of the load, an attribute of the runner."""
    if "is_draft_worker" in kwargs:
        return bool(kwargs["is_draft_worker"])
    return bool(args) and bool(getattr(args[0], "is_draft_worker", False))


def _strike(fault: Fault, available: float) -> None:
    """Do what the fault says; returns only where its condition does not hold. ``available`` is in GiB."""
    if fault.action == "raise_oom_above":
        from sglang.srt.runtime_context import get_server_args

        fraction, largest = float(get_server_args().mem_fraction_static), float(fault.value or 0.0)
        if fraction <= largest:
            return
        raise torch.OutOfMemoryError(oom.above_text(fraction, largest, available))
    if fault.action == "raise_oom":
        raise torch.OutOfMemoryError(_OOM_TEXT)
    if fault.action == "exit":
        # Not sys.exit: SGLang would catch it, and the point is a process that is gone without a word.
        os._exit(int(fault.value or 0))
    while True:
        time.sleep(3600)
