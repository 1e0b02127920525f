"""Registers the attention operators as ``torch.ops.sgl_kernel``, where SGLang's CPU attention backend looks them up."""

from __future__ import annotations

import torch

from .attention import decode_attention_cpu, extend_attention_cpu

# Kept for the life of the process: torch drops the operators of a library object that is collected.
_libraries: list[torch.library.Library] = []

_DECODE = (
    "decode_attention_cpu(Tensor query, Tensor(a!) k_cache, Tensor(b!) v_cache, float k_scale, float v_scale, "
    "Tensor(c!) output, Tensor? key, Tensor? value, Tensor loc, Tensor attn_logits, Tensor req_to_token, "
    "Tensor req_pool_indices, Tensor seq_lens, float sm_scale, float logit_cap, bool is_cross_attn, "
    "int sliding_window_size, Tensor? encoder_lens, Tensor? sinks) -> ()"
)
_EXTEND = (
    "extend_attention_cpu(Tensor q_extend, Tensor? k_extend, Tensor? v_extend, Tensor(a!) o_extend, Tensor k_buffer, "
    "Tensor v_buffer, float k_scale, float v_scale, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
    "Tensor extend_seq_lens, Tensor extend_start_loc, int max_len_extend, float sm_scale, float logit_cap, "
    "bool is_cross_attn, int sliding_window_size, Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask, "
    "bool is_causal) -> ()"
)


def register_operators() -> None:
    """Define the operators once a process; calling it again does nothing."""
    if _libraries:
        return
    library = torch.library.Library("sgl_kernel", "FRAGMENT")
    for schema, function in ((_DECODE, decode_attention_cpu), (_EXTEND, extend_attention_cpu)):
        library.define(schema)
        library.impl(schema.partition("(")[0], function, "CPU")
    _libraries.append(library)
