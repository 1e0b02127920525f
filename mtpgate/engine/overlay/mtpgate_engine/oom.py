"""The text of a CUDA out of memory, in PyTorch's words, with numbers that belong together."""

from __future__ import annotations

SHARE_TOLD = 0.98
"""Of what is missing: the request that fails never tells more than that, and usually less."""


def above_text(fraction: float, largest: float, available: float) -> str:
    """What a launch with memory fraction ``fraction`` would say on a GPU on which at most ``largest`` works.

    ``available`` is the memory before the weights were loaded, GiB. What is missing is ``(fraction - largest) *
    available``, and so much more is asked for than is free.
    """
    free = 0.02 * available
    tried = free + (fraction - largest) * available * SHARE_TOLD
    return text(tried, free, available + 0.80)


def text(tried: float, free: float, total: float) -> str:
    """``torch.OutOfMemoryError`` (``c10/cuda/CUDACachingAllocator.cpp``, 2.x) for sizes in GiB."""
    used = total - free
    reserved = 0.01 * used
    return (
        f"CUDA out of memory. Tried to allocate {_size(tried)}. GPU 0 has a total capacity of {_size(total)} of which "
        f"{_size(free)} is free. Including non-PyTorch memory, this process has {_size(used)} memory in use. Of the "
        f"allocated memory {_size(used - reserved - 0.5)} is allocated by PyTorch, and {_size(reserved)} is reserved "
        "by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )


def _size(gib: float) -> str:
    """As PyTorch writes a size: GiB from 1 GiB on, else MiB."""
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.2f} MiB"
