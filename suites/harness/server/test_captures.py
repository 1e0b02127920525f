"""Which graph captures a launch must have gone through."""

from __future__ import annotations

from typing import Any

import pytest

from mtpgate.matrix.cell import Cell, Speculation
from mtpgate.server.captures import expected_captures

PLAIN = Cell("nomtp", {})
ONE_STEP = Cell("eagle-s1-k1-d2", {}, speculation=Speculation("EAGLE", 1, 1, 2))
THREE_STEPS = Cell("eagle-s3-k1-d4", {}, speculation=Speculation("EAGLE", 3, 1, 4))
GPU: dict[str, Any] = {"device": "cuda", "disable_cuda_graph": False}
CPU: dict[str, Any] = {"device": "cpu", "disable_cuda_graph": False}


@pytest.mark.parametrize(
    ("cell", "info", "expected"),
    [
        (PLAIN, GPU, {"capture_target_decode"}),
        (ONE_STEP, GPU, {"capture_target_verify"}),
        (THREE_STEPS, GPU, {"capture_target_verify", "capture_draft_decode"}),
        (THREE_STEPS, {**GPU, "disable_cuda_graph": True}, set()),
        (THREE_STEPS, {**GPU, "cuda_graph_backend_decode": "disabled"}, set()),
        (PLAIN, CPU, set()),
        (PLAIN, {**CPU, "enable_torch_compile": True}, {"capture_target_decode"}),
        (THREE_STEPS, CPU, set()),
    ],
)
def test_captures_follow_from_the_cell_and_what_the_server_runs(
    cell: Cell, info: dict[str, Any], expected: set[str]
) -> None:
    assert expected_captures(cell, info) == expected
