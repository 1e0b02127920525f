"""Load generators beside each other on one paced server: how wrong their figures are, and what they cost.

Run by hand on a machine with two idle cores; the server has one, each client the other. Clients other than ours are
run from interpreters of their own, so that nothing is installed here:

    python -m venv /tmp/guidellm && /tmp/guidellm/bin/pip install guidellm==0.8.1
    python -m venv /tmp/aiperf && /tmp/aiperf/bin/pip install aiperf==0.13.0
    python -m suites.harness.peers.compare --tokenizer .cache/mtpgate/model \\
        --guidellm /tmp/guidellm/bin/guidellm --aiperf /tmp/aiperf/bin/aiperf

``sglang.bench_serving`` is that of this interpreter (``--sglang-python`` names another). Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from mtpgate.engine.environment import engine_environment
from suites.harness.peers.pacing import TOKENS, PacedServer, Truth, paced_server, truth_of

ROOT = Path(__file__).parents[3]
CONCURRENCIES = (1, 16, 64)
TTFT, GAP = 0.05, 0.005
LIMIT_SECONDS = 240


@dataclass(frozen=True)
class Reported:
    """What a client says. Times are seconds; None where it does not say."""

    ttft: float | None
    tpot: float | None


@dataclass(frozen=True)
class Peer:
    name: str
    command: Callable[[str, int, int, Path], list[str]]
    """(address, concurrency, requests, folder for results) -> argument list."""
    reported: Callable[[Path, str], Reported]
    """(folder for results, standard output) -> figures."""
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Run:
    reported: Reported
    truth: Truth
    concurrency: int
    began: float
    ended: float
    cpu: float
    """Of the client and its children between the first request and the last token; seconds."""


class CpuWatch:
    """Samples the CPU time of a process and its children, ten times a second."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._samples: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            with contextlib.suppress(psutil.Error):
                family = [self._process, *self._process.children(recursive=True)]
                total = sum(sum(member.cpu_times()[:4]) for member in family)
                self._samples.append((time.perf_counter(), total))

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def seconds(self, start: float, end: float) -> float:
        """CPU seconds between two times, from the samples nearest to them, scaled to the time asked for."""
        first = max((sample for sample in self._samples if sample[0] <= start), default=self._samples[0])
        last = max(sample for sample in self._samples if sample[0] <= end)
        return (last[1] - first[1]) * (end - start) / max(last[0] - first[0], 1e-9)


def run(peer: Peer, server: PacedServer, concurrency: int, requests: int, core: int, *, fast: bool = False) -> Run:
    paths = ["/generate", "/v1/completions"]
    server.pace(ttft=0.0 if fast else TTFT, gap=0.0 if fast else GAP, prepare=paths)
    with tempfile.TemporaryDirectory() as folder:
        # Imported by sglang.bench_serving for a data set that is not used here.
        (Path(folder) / "datasets.py").write_text("load_dataset = None\n")
        command = ["taskset", "-c", str(core), *peer.command(server.url, concurrency, requests, Path(folder))]
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=dict(peer.environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        watch = CpuWatch(process.pid)
        try:
            output, errors = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.kill()
            watch.stop()
        end = time.perf_counter()
        if process.returncode != 0:
            raise RuntimeError(f"{peer.name} failed:\n{output[-1500:]}\n{errors[-1500:]}")
        log = [request for request in server.log() if len(request["sends"]) > 1]
        # Warm-up requests come first: those that the client does not count are not in the truth either.
        log = sorted(log, key=lambda request: request["received"])[-requests:]
        truth = truth_of(log)
        cpu = watch.seconds(truth.first_received, truth.last_sent)
        return Run(peer.reported(Path(folder), output), truth, concurrency, began, end, cpu)


def ours() -> Peer:
    def command(url: str, concurrency: int, requests: int, _: Path) -> list[str]:
        options = {"concurrency": concurrency, "requests": requests, "tokens": TOKENS}
        return [sys.executable, "-m", "suites.harness.peers.ours", url, *_flags(options)]

    def reported(_: Path, output: str) -> Reported:
        told = json.loads(output)
        return Reported(told["ttft"], told["tpot"])

    return Peer("mtpgate", command, reported, {**os.environ, "PYTHONPATH": str(ROOT)})


def bench_serving(python: str, tokenizer: Path, *, rust: bool) -> Peer:
    def command(url: str, concurrency: int, requests: int, folder: Path) -> list[str]:
        options = {
            "backend": "sglang",
            "base-url": url,
            "model": "paced",
            "tokenizer": tokenizer,
            "dataset-name": "random-ids",
            "random-input-len": TOKENS,
            "random-output-len": TOKENS,
            "random-range-ratio": 1.0,
            "num-prompts": requests,
            "max-concurrency": concurrency,
            "warmup-requests": 1,
            "output-file": folder / "result.jsonl",
        }
        extra = ["--tokenize-prompt", "--disable-tqdm", *(["--rust-client"] if rust else [])]
        return [python, "-m", "sglang.bench_serving", *_flags(options), *extra]

    def reported(folder: Path, _: str) -> Reported:
        told = json.loads((folder / "result.jsonl").read_text().splitlines()[-1])
        return Reported(told["mean_ttft_ms"] / 1000, told["mean_tpot_ms"] / 1000)

    name = "sglang.bench_serving" + (", Rust client" if rust else "")
    return Peer(name, command, reported, engine_environment(os.environ))


def guidellm(program: str, tokenizer: Path) -> Peer:
    def command(url: str, concurrency: int, requests: int, folder: Path) -> list[str]:
        parts = {
            "backend": f"kind=openai_http,target={url},model={tokenizer},request_format=/v1/completions",
            "profile": f"kind=concurrent,streams={concurrency}",
            "constraint": f"kind=max_requests,count={requests}",
            "data": f"kind=synthetic_text,prompt_tokens={TOKENS},output_tokens={TOKENS}",
            "output": f"kind=json,path={folder / 'result.json'}",
        }
        return [program, "run", *_flags(parts), "--disable-console"]

    def reported(folder: Path, _: str) -> Reported:
        metrics = json.loads((folder / "result.json").read_text())["benchmarks"][0]["metrics"]
        ttft = metrics["time_to_first_token_ms"]["successful"]["mean"]
        # "Inter-token latency" there is (last - first) / (tokens - 1), which others call TPOT.
        return Reported(ttft / 1000, metrics["inter_token_latency_ms"]["successful"]["mean"] / 1000)

    return Peer("guidellm", command, reported, {**os.environ, "HF_HUB_OFFLINE": "1"})


def aiperf(program: str, tokenizer: Path) -> Peer:
    def command(url: str, concurrency: int, requests: int, folder: Path) -> list[str]:
        options = {
            "model": "paced",
            "url": url,
            "endpoint-type": "completions",
            "tokenizer": tokenizer,
            "concurrency": concurrency,
            "request-count": requests,
            "synthetic-input-tokens-mean": TOKENS,
            "output-tokens-mean": TOKENS,
            "artifact-dir": folder / "artifacts",
            "ui": "none",
        }
        return [program, "profile", "--streaming", "--use-server-token-count", *_flags(options)]

    def reported(folder: Path, _: str) -> Reported:
        (path,) = (folder / "artifacts").rglob("profile_export_aiperf.json")
        told = json.loads(path.read_text())
        return Reported(told["time_to_first_token"]["avg"] / 1000, told["inter_token_latency"]["avg"] / 1000)

    return Peer("aiperf", command, reported, os.environ)


def _flags(options: Mapping[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]


def row(peer: Peer, runs: Sequence[Run], fast: Run) -> str:
    """One line of the table; the CPU for each token is that of the largest concurrency."""
    ttft = "/".join(_error(run.reported.ttft, run.truth.ttft) for run in runs)
    tpot = "/".join(_error(run.reported.tpot, run.truth.tpot, digits=2) for run in runs)
    lost = "/".join(f"{100 * run.truth.lost(run.concurrency):.1f}" for run in runs)
    small, large = runs[0], runs[-1]
    cost = 1000 * large.cpu / large.truth.tokens
    start, end = small.truth.first_received - small.began, small.ended - small.truth.last_sent
    speed = fast.truth.tokens / (fast.truth.last_sent - fast.truth.first_received)
    return f"| {peer.name} | {speed / 1000:.0f}k | {cost:.4f} | {ttft} | {tpot} | {lost} | {start:.1f} / {end:.1f} |"


def _error(reported: float | None, truth: float, digits: int = 1) -> str:
    return "-" if reported is None else f"{100 * (reported / truth - 1):+.{digits}f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tokenizer", type=Path, required=True, help="folder of a tokenizer with one token a character"
    )
    parser.add_argument("--sglang-python", default=sys.executable)
    parser.add_argument("--guidellm", help="the program; left out without it")
    parser.add_argument("--aiperf", help="the program; left out without it")
    parser.add_argument("--only", default="", help="only clients whose name contains this")
    asked = parser.parse_args()
    tokenizer = asked.tokenizer.absolute()
    peers = [ours(), *(bench_serving(asked.sglang_python, tokenizer, rust=rust) for rust in (False, True))]
    peers += [guidellm(asked.guidellm, tokenizer)] if asked.guidellm else []
    peers += [aiperf(asked.aiperf, tokenizer)] if asked.aiperf else []
    server_core, client_core = sorted(os.sched_getaffinity(0))[:2]
    print(
        "| client | max tok/s, one core | CPU ms/token | TTFT error % | TPOT error % | load lost % | start / end, s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    failed = 0
    with paced_server(server_core) as server:
        for peer in (peer for peer in peers if asked.only in peer.name):
            try:
                runs = [run(peer, server, count, 4 * count, client_core) for count in CONCURRENCIES]
                print(row(peer, runs, run(peer, server, 64, 256, client_core, fast=True)), flush=True)
            except (RuntimeError, subprocess.TimeoutExpired, OSError, ValueError, KeyError) as error:
                failed += 1
                print(f"{peer.name}: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
