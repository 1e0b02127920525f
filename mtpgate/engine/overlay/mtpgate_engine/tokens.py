"""Operators on flat token tensors: the bonus token, the accepted slots, the shifted inputs of a multi-layer draft."""

from __future__ import annotations

import torch

from .ragged import table_cells


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, accept_stride: int
) -> None:
    """``bonus_tokens[i]`` becomes the last of the ``accept_lens[i]`` tokens in request ``i``'s run of
    ``accept_stride``."""
    last = torch.arange(accept_lens.numel()) * accept_stride + accept_lens - 1
    bonus_tokens[: last.numel()] = accept_tokens.flatten()[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """Pack the slots of the accepted tokens (``accept_index`` without its -1 entries) to the front of the output."""
    index = accept_index.flatten()
    slots = out_cache_loc[index[index > -1]]
    accept_out_cache_loc[: slots.numel()] = slots.to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's run of ``input_ids`` one to the left, in place, and put its new token at the end.

    ``select_index[i]``, where given, is the flat place for request ``i``'s new token instead of the end of its run; the
    end of the run then keeps its token. Empty runs are left alone.
    """
    runs = extend_seq_lens > 0
    starts = extend_start_loc[runs].to(torch.int64)
    ends = starts + extend_seq_lens[runs]
    _, moved = table_cells(torch.zeros_like(starts), starts, ends - 1)
    input_ids[moved] = input_ids[moved + 1]
    last = ends - 1 if select_index is None else select_index[: runs.numel()][runs].to(torch.int64)
    input_ids[last] = topk_index.flatten()[: runs.numel()][runs].to(input_ids.dtype)
