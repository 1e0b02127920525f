"""The texts by which launches die, in the spellings of many versions and libraries, each in the phase it is met in."""

from __future__ import annotations

import pytest

from mtpgate.server.diagnose import diagnose_lines

STAMP = "[2026-07-21 13:41:38 TP1]"
BEGUN = {
    "dist_init": ["Init torch distributed begin."],
    "weight_load": ["Load weight begin. avail mem=90.00 GB"],
    "kv_pool": [
        "Load weight begin. avail mem=90.00 GB",
        "Load weight end. type=T, avail mem=50.00 GB, mem usage=40.00 GB.",
        "KV Cache is allocated. #tokens: 100, KV size: 3.00 GB",
    ],
    "capture_target_decode": [
        "Load weight begin. avail mem=90.00 GB",
        "Load weight end. type=T, avail mem=50.00 GB, mem usage=40.00 GB.",
        "Memory pool end. avail mem=20.00 GB",
        "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1, 8], avail mem=20.00 GB",
    ],
    "serving": ["Load weight begin. avail mem=90.00 GB", "The server is fired up and ready to roll!"],
}
SIZES = "GPU 1 has a total capacity of 94.97 GiB of which 2.30 GiB is free."


def diagnose(phase: str, *raised: str, frame: str = "x.py"):  # type: ignore[no-untyped-def]
    lines = [f"{STAMP} {line}" for line in BEGUN[phase]]
    lines += [
        f"{STAMP} Scheduler hit an exception: Traceback (most recent call last):",
        f'  File "{frame}", line 1, in f',
    ]
    return diagnose_lines([*lines, *raised], {"exit_code": -9, "mem_fraction_static": 0.8})


GRAPHS, KERNEL, TIMEOUT = "oom_graph_capture", "kernel_unsupported", "collective_timeout"
CAPTURE, LOAD, SERVE, POOL, INIT = "capture_target_decode", "weight_load", "serving", "kv_pool", "dist_init"


@pytest.mark.parametrize(
    ("phase", "text", "kind"),
    [
        (CAPTURE, f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. {SIZES}", GRAPHS),
        (CAPTURE, f"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. {SIZES}", GRAPHS),
        (
            CAPTURE,
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 22.20 GiB total "
            "capacity; 20.75 GiB already allocated; 5.12 MiB free; 21.00 GiB reserved in total by PyTorch)",
            GRAPHS,
        ),
        (CAPTURE, "torch.AcceleratorError: CUDA error: out of memory", GRAPHS),
        (CAPTURE, "RuntimeError: CUDA error: out of memory", GRAPHS),
        (CAPTURE, "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`", GRAPHS),
        (CAPTURE, "RuntimeError: NCCL error: Failed to CUDA calloc 6291456 bytes", GRAPHS),
        (CAPTURE, "RuntimeError: Triton Error [CUDA]: out of memory", GRAPHS),
        (
            CAPTURE,
            "RuntimeError: memory allocation failed with OOM on device 1 while trying to allocate 2147483648 bytes "
            "(free: 1073741824, total: 101972967424)",
            GRAPHS,
        ),
        (LOAD, f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. {SIZES}", "oom_weights"),
        (POOL, f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. {SIZES}", "not_enough_memory"),
        (SERVE, f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. {SIZES}", "oom_serving"),
        (INIT, "torch.AcceleratorError: CUDA error: out of memory", "gpu_occupied"),
        (CAPTURE, "RuntimeError: CUDA error: invalid device function", KERNEL),
        (CAPTURE, "ptxas fatal   : Value 'sm_120a' is not defined for option 'gpu-name'", KERNEL),
        (CAPTURE, "NotImplementedError: FlashMLA is only supported on Hopper", KERNEL),
        (CAPTURE, "ValueError: trtllm_mha backend requires SM100", KERNEL),
        (CAPTURE, "RuntimeError: Unsupported compute capability 12.0", KERNEL),
        (
            CAPTURE,
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware "
            "limit: 101376. Reducing block sizes may help.",
            KERNEL,
        ),
        (CAPTURE, "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error", KERNEL),
        (
            CAPTURE,
            "subprocess.CalledProcessError: Command '/x/triton/backends/nvidia/bin/ptxas --gpu-name=sm_120 a.ptx "
            "-o a.o' returned non-zero exit status 255.",
            KERNEL,
        ),
        (SERVE, "RuntimeError: CUDA error: device-side assert triggered", "illegal_memory_access"),
        (SERVE, "torch.AcceleratorError: CUDA error: misaligned address", "illegal_memory_access"),
        (SERVE, "torch.AcceleratorError: CUDA error: unspecified launch failure", "illegal_memory_access"),
        (SERVE, "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", "nan_logits"),
        (SERVE, "RuntimeError: Decode out of memory. Try to lower your batch size.", "kv_exhausted"),
        (INIT, "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms", TIMEOUT),
        (INIT, "RuntimeError: [gloo/transport/tcp/pair.cc:559] Timed out waiting 1800000ms for recv", TIMEOUT),
        (INIT, "OSError: [Errno 98] Address in use: EADDRINUSE", "port_in_use"),
        (LOAD, "OSError: [Errno 12] Cannot allocate memory", "host_oom_killed"),
        (LOAD, "MemoryError", "host_oom_killed"),
        (LOAD, "KeyError: 'model.layers.3.mlp.weird'", "unknown"),
    ],
)
def test_text_is_the_kind_that_it_is(phase: str, text: str, kind: str) -> None:
    found = diagnose(phase, text)
    assert (found.kind, found.phase, found.rank) == (kind, phase, "TP1")
    assert any(text[:60] in item.text for item in found.evidence)


def test_old_spelling_has_its_numbers() -> None:
    text = (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 22.20 GiB total "
        "capacity; 20.75 GiB already allocated; 128.00 MiB free; 21.00 GiB reserved)"
    )
    numbers = diagnose("capture_target_decode", text).numbers
    assert (numbers["tried"], numbers["free"], numbers["total"]) == (0.5, 0.125, 22.2)


def test_pool_that_was_sized_and_could_not_be_allocated_is_too_large() -> None:
    oom = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. {SIZES}"
    found = diagnose("kv_pool", oom)
    assert (found.advice.mem_fraction_static, found.advice.min) == ("lower", None)
    assert found.advice.suggested == 0.78  # 0.8 - (3 - 2.3 + 1) / 90
    assert "raise mem_fraction_static" in found.not_advice
    refused = diagnose("kv_pool", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    assert refused.advice.mem_fraction_static == "raise"


def test_memory_that_another_process_has_is_no_fault_of_the_fraction() -> None:
    oom = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. {SIZES}"
    lines = [
        f"{STAMP} Load weight begin. avail mem=40.00 GB",
        f"{STAMP} Scheduler hit an exception: Traceback (most recent call last):",
        oom,
    ]
    found = diagnose_lines(lines, {"gpu_total_gib": 94.97})
    assert (found.kind, found.advice.mem_fraction_static) == ("gpu_occupied", None)
    assert found.advice.text[0] == "TP1: 40.0 of 95.0 GiB were free before the load; another process has the rest."


def test_memory_that_the_process_itself_has_is_not_another_s() -> None:
    oom = f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.50 GiB. {SIZES}"
    lines = [
        f"{STAMP} Load weight begin. avail mem=21.85 GB",
        f"{STAMP} Scheduler hit an exception: Traceback (most recent call last):",
        f"{oom} Including non-PyTorch memory, this process has 92.67 GiB memory in use.",
    ]
    assert diagnose_lines(lines).kind == "oom_weights"


def test_a_soft_watchdog_ends_nothing() -> None:
    ready = [f"{STAMP} {line}" for line in BEGUN["serving"]]
    soft = f"{STAMP} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=True)"
    hard = f"{STAMP} Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"
    assert diagnose_lines([*ready, soft]).kind == "ok"
    assert diagnose_lines([*ready, hard]).kind == "watchdog"


@pytest.mark.parametrize(
    ("frame", "phase"),
    [
        ("srt/model_executor/cuda_graph_runner.py", "capture_target_decode"),
        ("srt/speculative/eagle_draft_cuda_graph_runner.py", "capture_draft_decode"),
        ("srt/speculative/eagle_draft_extend_cuda_graph_runner.py", "capture_draft_extend"),
        ("srt/model_executor/piecewise_cuda_graph_runner.py", "capture_prefill"),
        ("srt/model_loader/loader.py", "weight_load"),
        ("srt/mem_cache/memory_pool.py", "kv_pool"),
    ],
)
def test_frames_tell_the_phase_where_the_begin_is_lost(frame: str, phase: str) -> None:
    lines = [
        f"{STAMP} Scheduler hit an exception: Traceback (most recent call last):",
        f'  File "{frame}", line 1, in f',
    ]
    assert diagnose_lines([*lines, "torch.AcceleratorError: CUDA error: out of memory"]).phase == phase
