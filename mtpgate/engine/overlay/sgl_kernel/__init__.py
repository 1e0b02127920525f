"""The kernel package that SGLang imports by this name on the CPU, over ``mtpgate_engine``'s operators.

The published ``sglang-kernel`` wheel is built for CUDA and lacks the CPU operators. ``convert_weight_packed`` is left
undefined on purpose: SGLang takes its presence as the sign that the AMX paths may be switched on.
"""

from mtpgate_engine.cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
)
from mtpgate_engine.register import register_operators
from mtpgate_engine.tokens import fill_accept_out_cache_loc_cpu, fill_bonus_tokens_cpu, rotate_input_ids_cpu
from mtpgate_engine.tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

register_operators()
