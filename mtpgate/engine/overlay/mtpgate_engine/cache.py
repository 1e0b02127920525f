"""Operators on the KV pool's bookkeeping: ``req_to_token[request, position]`` is the pool slot of a token's K and V.

Names and arguments are those that SGLang 0.5.23 calls; ``pool_len`` (the table's row length) is implied by the table
here. ``out_cache_loc`` holds pool slots as int64, the table as int32.
"""

from __future__ import annotations

import ctypes

import torch

from .ragged import table_cells


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write the slots ``out_cache_loc`` to the positions ``start_offset[i]:end_offset[i]`` of each request's row."""
    rows, columns = table_cells(req_pool_indices, start_offset, end_offset)
    req_to_token[rows, columns] = out_cache_loc[: rows.numel()].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Read the slots at the positions ``start_offset[i]:end_offset[i]`` of each request, run after run, to
    ``out_cache_loc``."""
    rows, columns = table_cells(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: rows.numel()] = req_to_token[rows, columns].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the ``topk * num_steps`` slots that follow each request's committed tokens to ``out_cache_loc``."""
    positions = seq_lens.to(torch.int64)[:, None] + torch.arange(topk * num_steps)
    slots = req_to_token[req_pool_indices[:, None], positions]
    out_cache_loc[: slots.numel()] = slots.flatten().to(out_cache_loc.dtype)


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """One table row for each candidate of each request: the committed prefix, then that candidate's own draft tokens.

    Row ``i * topk + k`` of the result ``[bs * topk, max(seq_lens) + num_steps]`` is what candidate ``k`` of request
    ``i`` attends to. The draft wrote its step ``s`` to the slot at position ``seq_lens[i] + k * num_steps + s`` of the
    table; the result has it at ``seq_lens[i] + s``. It is narrower than ``pool_len`` because nothing reads past the
    last draft token.
    """
    width = int(seq_lens.max()) + num_steps if seq_lens.numel() else num_steps
    position = torch.arange(width)
    candidate = torch.arange(topk)
    is_draft = position >= seq_lens[:, None]
    shift = candidate[None, :, None] * num_steps * is_draft[:, None, :]
    return req_to_token[req_pool_indices[:, None, None], position + shift].flatten(0, 1)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy pool slots ``src_loc`` to ``tgt_loc`` in every layer's K and V buffer, all reads before all writes.

    ``data_ptrs`` are the addresses of the buffers, ``strides`` their bytes for one slot. The source and target sets may
    overlap.
    """
    if tgt_loc.numel() == 0:
        return
    slots = int(torch.maximum(tgt_loc.max(), src_loc.max())) + 1
    source, target = src_loc.to(torch.int64), tgt_loc.to(torch.int64)
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        buffer.index_copy_(0, target, buffer.index_select(0, source))
