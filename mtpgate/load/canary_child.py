"""Run as a script: how fast this machine multiplies and copies right now, as JSON on the standard output.

``canary_child.py cpu`` uses numpy on one core for about 0.3 s; ``canary_child.py gpu`` uses torch on each visible GPU
for about 0.5 s. A process of its own, so that no CUDA context stays on the GPUs; it imports nothing of this project, so
that the interpreter of the SGLang under test can run it. The best of many short runs counts, which is what the clocks
allow; what other processes take is seen by other means.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

CPU_SIDE, CPU_COPY_BYTES, CPU_SECONDS = 512, 8 << 20, 0.15
GPU_SIDE, GPU_COPY_BYTES, GPU_SECONDS = 4096, 256 << 20, 0.15
FEWEST = 3


def best(run: Callable[[], object], seconds: float) -> float:
    """The shortest of the runs that fit into ``seconds``."""
    run()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < FEWEST or time.perf_counter() < end:
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return min(found)


def figures(side: int, product: float, copied: int, copy: float, *, giga: float) -> tuple[float, float]:
    """(floating point operations / s in units of ``giga``, GiB/s read and written)."""
    return 2 * side**3 / product / giga, 2 * copied / (1 << 30) / copy


def cpu() -> dict[str, dict[str, float]]:
    """One core of the CPU."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    import numpy  # noqa: PLC0415 - after the number of threads is set

    left = numpy.ones((CPU_SIDE, CPU_SIDE), numpy.float32)
    right, result = left.copy(), numpy.empty_like(left)
    source, target = numpy.ones(CPU_COPY_BYTES, numpy.uint8), numpy.empty(CPU_COPY_BYTES, numpy.uint8)
    product = best(lambda: numpy.matmul(left, right, out=result), CPU_SECONDS)
    copy = best(lambda: numpy.copyto(target, source), CPU_SECONDS)
    flops, rate = figures(CPU_SIDE, product, CPU_COPY_BYTES, copy, giga=1e9)
    return {"CPU": {"matmul_gflops": flops, "copy_gib_s": rate}}


def gpu(torch: Any) -> dict[str, dict[str, float]]:
    """Each visible GPU, one after the other, in half precision."""
    found = {}
    for number in range(torch.cuda.device_count()):
        device = torch.device("cuda", number)
        left = torch.ones((GPU_SIDE, GPU_SIDE), dtype=torch.float16, device=device)
        result = torch.empty_like(left)
        source = torch.ones(GPU_COPY_BYTES, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)

        def multiply(left: Any = left, result: Any = result, device: Any = device) -> None:
            torch.matmul(left, left, out=result)
            torch.cuda.synchronize(device)

        def duplicate(source: Any = source, target: Any = target, device: Any = device) -> None:
            target.copy_(source)
            torch.cuda.synchronize(device)

        best(multiply, GPU_SECONDS)  # An idle GPU takes a tenth of a second to raise its clocks.
        product, copy = best(multiply, GPU_SECONDS), best(duplicate, GPU_SECONDS)
        flops, rate = figures(GPU_SIDE, product, GPU_COPY_BYTES, copy, giga=1e12)
        found[f"GPU {number}"] = {"matmul_tflops": flops, "copy_gib_s": rate}
    return found


def main() -> None:
    if sys.argv[1:] == ["cpu"]:
        print(json.dumps(cpu()))
        return
    import torch  # noqa: PLC0415 - seconds, and not needed for the CPU

    print(json.dumps(gpu(torch)))


if __name__ == "__main__":
    main()
