"""The two attention operators of SGLang's CPU backend: one new token per request (decode), or several (extend).

K and V of the whole context lie in pool buffers ``[slots, kv_heads, head_dim]``; ``req_to_token[request, position]`` is
the slot of a token. A batch of contexts of different lengths is gathered into one padded tensor for PyTorch's scaled
dot product attention. Where the requests bring different numbers of new tokens (prefill), they are taken one by one,
because padding both ways would cost more than the calls.

Only what SGLang's dense decoder models need is here: anything else is refused by name rather than computed wrongly.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


def decode_attention_cpu(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scale: float,
    v_scale: float,
    output: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Write to ``output`` the attention of one query per request over its first ``seq_lens[i]`` tokens, itself
    included.

    ``query`` and ``output`` are ``[bs, heads, head_dim]``; ``key`` and ``value`` ``[bs, kv_heads, head_dim]``, where
    given, are first stored in the pool at the slots ``loc``. ``attn_logits`` is scratch space that this implementation
    does not need.
    """
    _refuse(k_scale, v_scale, logit_cap, is_cross_attn, sliding_window_size, sinks)
    if key is not None and value is not None:
        slots = loc.to(torch.int64)
        k_cache.index_copy_(0, slots, key.view(-1, *k_cache.shape[1:]).to(k_cache.dtype))
        v_cache.index_copy_(0, slots, value.view(-1, *v_cache.shape[1:]).to(v_cache.dtype))
    bs = seq_lens.numel()
    if bs == 0:
        return
    width = int(seq_lens.max())
    slots = req_to_token[req_pool_indices, :width]
    hidden = None if bs == 1 else torch.arange(width) >= seq_lens[:, None, None]
    output.copy_(_attend(query.unsqueeze(1), _rows(k_cache, slots), _rows(v_cache, slots), hidden, sm_scale).squeeze(1))


def extend_attention_cpu(
    q_extend: torch.Tensor,
    k_extend: torch.Tensor | None,
    v_extend: torch.Tensor | None,
    o_extend: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    tree_mask: torch.Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """Write to ``o_extend`` the attention of each request's last ``extend_seq_lens[i]`` of ``seq_lens[i]`` tokens.

    ``q_extend``, ``o_extend`` ``[tokens, heads, head_dim]`` and ``k_extend``, ``v_extend`` ``[tokens, kv_heads,
    head_dim]`` hold the requests' new tokens in runs that begin at ``extend_start_loc``. What comes before them is read
    from the pool; so are the new tokens where ``k_extend`` is None. A new token sees the tokens before the run and, of
    the run, those up to itself (causal) or those that ``tree_mask``, ``[bs * n * n]`` with true for visible, marks in
    its row; a tree mask asks for runs of the same length ``n`` in all requests.
    """
    _refuse(k_scale, v_scale, logit_cap, is_cross_attn, sliding_window_size, sinks)
    if not is_causal:
        raise NotImplementedError("the CPU operators know causal attention and tree masks only")
    bs, tokens = seq_lens.numel(), q_extend.shape[0]
    if bs == 0 or tokens == 0:
        return
    if tokens == bs * max_len_extend:
        _extend_equal_runs(
            q_extend,
            k_extend,
            v_extend,
            o_extend,
            k_buffer,
            v_buffer,
            req_to_token[req_pool_indices],
            seq_lens,
            sm_scale,
            tree_mask,
        )
        return
    if tree_mask is not None:
        raise NotImplementedError("a tree mask over runs of different lengths")
    for request, length, run, start in zip(
        req_pool_indices.tolist(), seq_lens.tolist(), extend_seq_lens.tolist(), extend_start_loc.tolist(), strict=True
    ):
        if run == 0:
            continue
        new = slice(start, start + run)
        _extend_equal_runs(
            q_extend[new],
            None if k_extend is None else k_extend[new],
            None if v_extend is None else v_extend[new],
            o_extend[new],
            k_buffer,
            v_buffer,
            req_to_token[request : request + 1],
            torch.tensor([length]),
            sm_scale,
            None,
        )


def _extend_equal_runs(
    query: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    output: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    table: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    tree_mask: torch.Tensor | None,
) -> None:
    """Extend attention where all requests bring the same number of new tokens; ``table`` has one row for each."""
    bs = seq_lens.numel()
    run = query.shape[0] // bs
    width = int(seq_lens.max())
    slots = table[:, :width]
    keys, values = _rows(k_buffer, slots), _rows(v_buffer, slots)
    prefix = seq_lens[:, None] - run
    new_positions = prefix + torch.arange(run)
    if key is not None and value is not None:
        request = torch.arange(bs)[:, None]
        keys[request, new_positions] = key.view(bs, run, *keys.shape[2:])
        values[request, new_positions] = value.view(bs, run, *values.shape[2:])

    if tree_mask is None:
        hidden = torch.arange(width) > new_positions[:, :, None]
    else:
        hidden = (torch.arange(width) >= prefix[:, :, None]).repeat(1, run, 1)
        unseen = ~tree_mask[: bs * run * run].view(bs, run, run).to(torch.bool)
        hidden.scatter_(2, new_positions[:, None, :].expand(bs, run, run), unseen)
    out = _attend(query.view(bs, run, *query.shape[1:]), keys, values, hidden, sm_scale)
    output.copy_(out.reshape(output.shape))


def _rows(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """``cache[slots]`` as ``[bs, width, kv_heads, head_dim]``; index_select is several times faster than indexing."""
    return cache.flatten(1).index_select(0, slots.flatten()).view(*slots.shape, *cache.shape[1:])


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor | None, sm_scale: float
) -> torch.Tensor:
    """Attention of ``query`` ``[bs, run, heads, dim]`` over ``keys``, ``values`` ``[bs, width, kv_heads, dim]`` as
    ``[bs, run, heads, dim]``.

    ``hidden`` ``[bs, 1 or run, width]`` is true where a query must not look. The query heads that share a K/V head are
    laid out as further queries of that head, so that K and V need not be repeated.
    """
    bs, run, heads, dim = query.shape
    kv_heads = keys.shape[2]
    group = heads // kv_heads
    folded = query.view(bs, run, kv_heads, group, dim).permute(0, 2, 3, 1, 4).reshape(bs, kv_heads, group * run, dim)
    mask = None
    if hidden is not None:
        mask = torch.zeros(hidden.shape, dtype=query.dtype).masked_fill_(hidden, float("-inf"))
        mask = mask.expand(bs, run, -1).repeat(1, group, 1).unsqueeze(1)
    out = scaled_dot_product_attention(
        folded,
        keys.transpose(1, 2).to(query.dtype),
        values.transpose(1, 2).to(query.dtype),
        attn_mask=mask,
        scale=sm_scale,
    )
    return out.view(bs, kv_heads, group, run, -1).permute(0, 3, 1, 2, 4).reshape(bs, run, heads, -1)


def _refuse(
    k_scale: float,
    v_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    sinks: torch.Tensor | None,
) -> None:
    """Raise NotImplementedError, naming the feature, for a model that needs more than these operators do."""
    unsupported = {
        "a quantised KV cache": k_scale != 1.0 or v_scale != 1.0,
        "a logit cap": logit_cap > 0,
        "cross attention": is_cross_attn,
        "a sliding window": sliding_window_size > 0,
        "attention sinks": sinks is not None,
    }
    for feature, needed in unsupported.items():
        if needed:
            raise NotImplementedError(f"the model needs {feature}, which the CPU attention operators do not have")
