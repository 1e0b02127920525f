"""Our client as a program: one load on a paced server, its figures as one JSON object. For benchmarks.

python -m suites.harness.peers.ours URL --concurrency 16 --requests 64
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from statistics import fmean

from mtpgate.load.figures import itl_seconds, percentile, tpot_seconds
from mtpgate.load.measure import repeat_objection, run_repeat
from mtpgate.load.prompts import TokenPrompt
from suites.harness.peers.pacing import TOKENS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--api", default="generate", choices=["generate", "completions"])
    asked = parser.parse_args()
    filling = range(TOKENS - 1)
    prompts = [TokenPrompt(f"numbers-{number}", "numbers", (number, *filling)) for number in range(asked.requests)]
    cpu = time.process_time()
    repeat = run_repeat(asked.url, prompts, concurrency=asked.concurrency, output_tokens=asked.tokens, api=asked.api)
    cpu = time.process_time() - cpu
    itl = [value for record in repeat.records for value in itl_seconds(record)]
    figures = {
        "ttft": fmean(repeat.ttft_seconds),
        "tpot": fmean(value for record in repeat.records if (value := tpot_seconds(record)) is not None),
        "itl": fmean(itl),
        "itl_p50": percentile(itl, 0.5),
        "itl_p99": percentile(itl, 0.99),
        "tokens": sum(record.output_tokens for record in repeat.records),
        "tokens_per_second": repeat.output_tokens_per_second,
        "cpu_seconds": cpu,
        "sent": repeat.started,
        "client": dict(repeat.client),
        "steady": asdict(repeat.steady) if repeat.steady else None,
        "objection": repeat_objection(repeat),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
