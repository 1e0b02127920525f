"""A result file of ``sglang.bench_serving`` 0.5.23 (its keys as far as they are read), and the matrix it is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MATRIX = """
name: small
hardware: {kind: cuda, gpu: [NVIDIA X], count: 1}
engine: sglang
model: {path: org/model, revision: abc}
axes:
  speculation: [null, {num_steps: 1, eagle_topk: 1, num_draft_tokens: 2}]
workloads: [{concurrency: 16, input_tokens: 32, output_tokens: 32, requests: 16}]
"""
INFO = {
    "version": "0.5.22",
    "model_path": "org/model",
    "attention_backend": "fa3",
    "tp_size": 1,
    "pp_size": 1,
    "random_seed": 7,
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 1,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 2,
}
LINE: dict[str, Any] = {
    "backend": "sglang",
    "request_rate": float("inf"),
    "max_concurrency": 16,
    "server_info": INFO,
    "duration": 3.2,
    "completed": 16,
    "total_input_tokens": 512,
    "total_output_tokens": 512,
    "output_throughput": 160.0,
    "median_ttft_ms": 100.0,
    "median_tpot_ms": 20.0,
    "accept_length": 1.8,
    "input_lens": [32] * 16,
    "output_lens": [32] * 16,
    "errors": [""] * 16,
}


def written(tmp_path: Path, *lines: dict[str, Any]) -> Path:
    path = tmp_path / "night.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
