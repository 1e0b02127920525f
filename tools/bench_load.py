"""How right the load generator is and what it costs: against a server that logs when it really sent.

The paced server has one core, the client another; nothing else should run. Prints a line for each load and
exits with 1 if one is beyond its limits. A minute. Example: python tools/bench_load.py

Where other things must run, ``--realtime`` puts both ahead of them (SCHED_FIFO, which needs root).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from suites.harness.peers.pacing import TOKENS, PacedServer, paced_server, truth_of  # noqa: E402

TTFT_LIMIT = 0.01
TPOT_LIMIT = 0.001
LOST_LIMIT = 0.005
FEWEST_TOKENS_PER_SECOND = 100_000
MOST_CPU_MS_PER_TOKEN = 0.03
READY_LIMIT = 0.5


@dataclass(frozen=True)
class Load:
    name: str
    concurrency: int
    requests: int
    tokens_per_chunk: int = 1
    ttft: float = 0.05
    gap: float = 0.005
    api: str = "generate"
    hogs: int = 0
    """Other processes on the client's core."""
    judged: bool = True


LOADS = (
    *(Load(f"paced C{c} {k} tok/chunk", c, max(4, 4 * c), k) for k in (1, 4) for c in (1, 16, 64)),
    Load("paced C64 /v1/completions", 64, 256, api="completions"),
    Load("paced C256, 50k chunks/s", 256, 512, judged=False),
    Load("as fast as it goes, C16", 16, 768, ttft=0.0, gap=0.0),
    Load("paced C16, 4 hogs on its core", 16, 64, hogs=4, judged=False),
)


@contextmanager
def hogs(count: int, core: int):
    """Processes that want all of ``core``."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(["taskset", "-c", str(core), *command]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def judge(load: Load, server: PacedServer, core: int) -> bool:
    """Run one load, print its line, and say whether it is within the limits."""
    paths = ["/generate", "/v1/completions"]
    server.pace(ttft=load.ttft, gap=load.gap, tokens_per_chunk=load.tokens_per_chunk, prepare=paths)
    command = ["taskset", "-c", str(core), sys.executable, "-m", "suites.harness.peers.ours", server.url]
    options = {"concurrency": load.concurrency, "requests": load.requests, "tokens": TOKENS, "api": load.api}
    command += [f"--{name}={value}" for name, value in options.items()]
    with hogs(load.hogs, core):
        began = time.perf_counter()
        told = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    truth = truth_of(server.log())
    ready = told["sent"] - began
    errors = {
        "TTFT": (told["ttft"] / truth.ttft - 1, TTFT_LIMIT),
        "TPOT": (told["tpot"] / truth.tpot - 1, TPOT_LIMIT),
        "ITL": (told["itl"] / truth.tpot - 1, TPOT_LIMIT),
        "lost": (truth.lost(load.concurrency), LOST_LIMIT),
    }
    cpu = 1000 * told["cpu_seconds"] / told["tokens"]
    beyond = [name for name, (error, limit) in errors.items() if abs(error) > limit] if load.gap else []
    beyond += ["cpu"] * (load.concurrency >= 64 and cpu > MOST_CPU_MS_PER_TOKEN)
    beyond += ["ready"] * (ready > READY_LIMIT)
    beyond += ["tokens/s"] * (not load.gap and told["tokens_per_second"] < FEWEST_TOKENS_PER_SECOND)
    beyond += ["count"] * (told["tokens"] != truth.tokens)
    shown = " ".join(f"{name} {error:+7.3%}" for name, (error, _) in errors.items()) if load.gap else " " * 51
    p99 = f"ITL p50 {told['itl_p50'] / truth.itl_p50 - 1:+6.1%} p99 {told['itl_p99'] / truth.itl_p99 - 1:+6.1%}"
    verdict = "not judged" if not load.judged else f"BEYOND: {', '.join(beyond)}" if beyond else "ok"
    print(
        f"{load.name:30} {shown} {p99 if load.gap else ' ' * 28} {told['tokens_per_second']:8.0f} tok/s "
        f"CPU {told['client']['cpu_share']:4.0%} {cpu:.4f} ms/tok ready {ready:.2f} s: {verdict}",
        flush=True,
    )
    if told["objection"]:
        print(f"{'':30} {told['objection']}")
    return not (load.judged and beyond)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only loads whose name contains this")
    parser.add_argument("--realtime", action="store_true", help="ahead of all other processes (needs root)")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("bench_load needs two cores: one for the server, one for the client", file=sys.stderr)
        return 2
    chosen = [load for load in LOADS if arguments.only in load.name and not (arguments.realtime and load.hogs)]
    if arguments.realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    with paced_server(cores[0]) as server:
        good = [judge(load, server, cores[-1]) for load in chosen]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
