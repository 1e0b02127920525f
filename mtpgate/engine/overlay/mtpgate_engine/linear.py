"""Linear layers on a few rows, the shape of speculative verification, over weights packed once.

PyTorch's float32 matrix product packs the weight anew at each call unless there is only one row. So on the CPU two rows
cost 1.8 times as much as one, and verifying two tokens at once could never pay, which is not what a GPU does. oneDNN's
linear over a weight packed beforehand takes 1.26 times as much for two rows and 1.5 for six (12 layers of width 512 and
4096, one thread of an AMD EPYC with AVX2). For one row, and from 16 rows on, PyTorch's own is as fast or faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

FEWEST_ROWS, MOST_ROWS = 2, 12


def small_batch_linear(
    original: Callable[..., torch.Tensor],
    method: Any,
    layer: torch.nn.Module,
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """AROUND hook on SGLang's ``UnquantizedLinearMethod.apply``: ``x`` ``[..., in]`` times the layer's weight ``[out,
    in]``.

    The packed copy is made when it is first needed and kept with the layer, so weights must not change while serving;
    it takes as much memory as the weight.
    """
    rows = x.numel() // x.shape[-1]
    if not FEWEST_ROWS <= rows <= MOST_ROWS or x.dtype != torch.float32:
        return original(method, layer, x, bias)
    packed = layer.__dict__.get("_mtpgate_packed")
    if packed is None:
        packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), None)
        layer.__dict__["_mtpgate_packed"] = packed
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
