"""The plugin's entry point: what SGLang calls in every one of its processes before it parses arguments."""

# ruff: noqa: PLC0415 (SGLang is imported late: it is being imported itself, or not there, when this module is)

from __future__ import annotations

import sys
from typing import Any

import torch

from .commit import arm, requested_fault
from .linear import small_batch_linear

# EAGLE refuses torch_native, and SGLang turns intel_amx into torch_native on a machine without AMX: hence a name of our
# own.
ATTENTION_BACKEND = "mtpgate_cpu"


def install() -> None:
    """Add the attention backend to SGLang's registry and flags, and the hooks to the process that runs the model."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices

    fault = requested_fault()
    if ATTENTION_BACKEND not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([ATTENTION_BACKEND])
    # A hook imports what it is put on: seconds that the other processes, which run no model, are spared.
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS, register_attention_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if ATTENTION_BACKEND not in ATTENTION_BACKENDS:
        register_attention_backend(ATTENTION_BACKEND)(_create_backend)
    HookRegistry.register(
        "sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend", _offer_ours, HookType.AROUND
    )
    HookRegistry.register("sglang.srt.mem_cache.allocation.get_last_loc", _last_loc, HookType.AROUND)
    HookRegistry.register(
        "sglang.srt.model_executor.cpu_graph_runner.register_cpu_compile_fake", _describe_existing, HookType.AROUND
    )
    if torch.backends.mkldnn.is_available():
        HookRegistry.register(
            "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply",
            small_batch_linear,
            HookType.AROUND,
        )
    if fault is not None:
        arm(fault)


def _create_backend(runner: Any) -> Any:
    from sglang.srt.layers.attention.intel_amx_backend import IntelAMXAttnBackend

    return IntelAMXAttnBackend(runner)


def _offer_ours(
    original: Any, factory: Any, backend_name: str, backend_map: dict[str, Any], *args: Any, **kwargs: Any
) -> Any:
    """Offer the draft model our backend, made as SGLang makes ``intel_amx`` (for one or for several draft steps)."""
    ours = {**backend_map, ATTENTION_BACKEND: backend_map["intel_amx"]}
    return original(factory, backend_name, ours, *args, **kwargs)


def _last_loc(original: Any, *args: Any) -> Any:
    """The slot of each request's last token; SGLang chooses its Triton kernel for a backend name it does not know."""
    from sglang.srt.mem_cache.allocation import get_last_loc_torch

    return get_last_loc_torch(*args)


def _describe_existing(original: Any, operator: str) -> Any:
    """Let CPU graph capture describe to torch.compile those of the kernel package's operators that exist here."""
    return original(operator) if hasattr(torch.ops.sgl_kernel, operator) else lambda description: description
