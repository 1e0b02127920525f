"""What the stand-in tells about itself: ``/server_info`` and ``/model_info``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from requesting import MAX_INPUT

if TYPE_CHECKING:
    from server import StandIn

GRAPHS = ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend")
# Reported by every server, and asked for by the matrices.
DEFAULTS = {
    "attention_backend": "mtpgate_cpu",
    "cuda_graph_max_bs_decode": None,
    "disable_cuda_graph": False,
    "disable_overlap_schedule": False,
    "dtype": "float32",
    "max_running_requests": 48,
    "max_total_tokens": 65536,
    "random_seed": 1,
    "served_model_name": "stand-in",
}


def server_info(standin: StandIn) -> dict[str, Any]:
    seconds = {"load_weight": 0.04, "kv_cache_allocation": 0.67, "scheduler_e2e": 2.28}
    graphs = dict.fromkeys(GRAPHS, 0.0)
    state: dict[str, Any] = {
        "effective_max_running_requests_per_dp": 48,
        "last_gen_throughput": 0.0,
        "memory_usage": {
            "weight": 0.2,
            "kvcache": 0.1,
            "startup_available": 11.2,
            "token_capacity": 65536,
            "token_capacity_swa": None,
            "graph": graphs,
        },
        "startup_time": {**seconds, "cuda_graph": graphs},
    }
    if standin.launch.speculative and standin.requests:
        state["avg_spec_accept_length"] = standin.behaviour.accept_length
    return {
        **DEFAULTS,
        "device": "cpu" if standin.behaviour.device == "cpu" else "cuda",
        **standin.arguments,
        "status": "ready",
        "max_total_num_tokens": 65536,
        "max_req_input_len": MAX_INPUT,
        "startup_time": {**seconds, "cuda_graph": graphs, "tokenizer_e2e": 13.65},
        "internal_states": [state],
        "version": standin.behaviour.version,
        **standin.behaviour.server_info,
    }


def model_info(standin: StandIn) -> dict[str, Any]:
    path = standin.arguments["model_path"]
    return {
        "model_path": path,
        "served_model_name": path,
        "tokenizer_path": path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "load_format": "auto",
        "model_type": "qwen2",
        "architectures": ["MiMoForCausalLM"],
    }
