"""Result files of ``sglang.bench_serving``: read as loads that can be compared, written so that its tools read ours.

One line of JSON a run (keys of 0.4.6 to 0.5.23, ``sglang/benchmark/serving.py``); with ``--output-details`` the lists
``input_lens``, ``output_lens``, ``ttfts``, ``itls``, ``generated_texts``, ``errors`` are in the same line.

What its figures are, which is not what this suite's are:

* ``output_throughput`` = output tokens / duration of the whole pass, ramp-up and tail included. It compares with
  :attr:`mtpgate.load.measurement.Repeat.pass_tokens_per_second`, never with a steady state's.
* TPOT = (last byte - first chunk) / (tokens - 1): too low by (k - 1) / (n - 1) where the first chunk has k tokens.
* ``accept_length`` is the server's average since its start, warm-up included, not that of the run.
* TTFT and TPOT percentiles are given for any number of samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mtpgate.errors import UsageError
from mtpgate.load.figures import end_to_end_seconds, itl_seconds, quantile, ttft_seconds
from mtpgate.load.measurement import Measurement, Repeat, RequestRecord

EXPECTED = "expected the JSON lines that `python -m sglang.bench_serving --output-file FILE` appends"
SHOWN_FAULTS = 3


@dataclass(frozen=True)
class BenchServingRun:
    """One run of ``sglang.bench_serving``. Tokens/s and percentiles are by its definitions (see the module)."""

    source: str
    """``FILE, line N``."""
    concurrency: int
    requests: int
    input_tokens: int | None
    """Of each request; None if they differ, or if the file does not tell (no ``--output-details``)."""
    output_tokens: int | None
    total_input_tokens: int
    total_output_tokens: int
    duration_seconds: float
    pass_tokens_per_second: float
    """Output tokens/s of the whole pass."""
    total_tokens_per_second: float
    accept_length: float | None
    ttft_p50_seconds: float
    tpot_p50_seconds: float
    backend: str
    server_info: Mapping[str, object]
    """All resolved server arguments and ``version``; empty in files of versions that did not write them."""
    tag: str | None = None
    void: str | None = None
    """Why this run cannot be compared with a closed loop at fixed concurrency, or None."""

    @property
    def sglang_version(self) -> str | None:
        version = self.server_info.get("version")
        return version if isinstance(version, str) else None


class _Line(BaseModel):
    """What a line must have. Other keys come and go with versions."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    backend: str
    request_rate: Annotated[float, Field(allow_inf_nan=True)] | str
    max_concurrency: int | None = None
    duration: float = Field(gt=0)
    completed: int = Field(ge=0)
    total_input_tokens: int = Field(ge=0)
    total_output_tokens: int = Field(ge=0)
    output_throughput: float = Field(ge=0)
    median_ttft_ms: float
    median_tpot_ms: float
    accept_length: float | None = None
    server_info: dict[str, Any] | None = None
    tag: str | None = None
    input_lens: list[int] | None = None
    output_lens: list[int] | None = None
    errors: list[str] | None = None


def read_bench_serving(path: Path) -> tuple[BenchServingRun, ...]:
    """All runs of a result file, in its order. Runs that cannot be compared are among them, with ``void`` set.

    Raises:
        UsageError: the file cannot be read, has no run, or a line is something else; names file, line and key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; {EXPECTED}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 ({error}); {EXPECTED}") from error
    runs = [
        _run(f"{path}, line {number}", line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()
    ]
    if not runs:
        raise UsageError(f"{path}: no run in it; {EXPECTED}")
    return tuple(runs)


def _run(source: str, text: str) -> BenchServingRun:
    try:
        decoded = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{source}: not JSON ({error}); {EXPECTED}") from error
    if not isinstance(decoded, dict):
        raise UsageError(f"{source}: a JSON {type(decoded).__name__}, not an object; {EXPECTED}")
    try:
        line = _Line.model_validate(decoded)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        more = f" and {len(faults) - SHOWN_FAULTS} more" if len(faults) > SHOWN_FAULTS else ""
        raise UsageError(f"{source}: {'; '.join(faults[:SHOWN_FAULTS])}{more}; {EXPECTED}") from error
    return BenchServingRun(
        source=source,
        concurrency=line.max_concurrency or line.completed,
        requests=line.completed,
        input_tokens=_same(line.input_lens),
        output_tokens=_same(line.output_lens),
        total_input_tokens=line.total_input_tokens,
        total_output_tokens=line.total_output_tokens,
        duration_seconds=line.duration,
        pass_tokens_per_second=line.output_throughput,
        total_tokens_per_second=(line.total_input_tokens + line.total_output_tokens) / line.duration,
        accept_length=line.accept_length,
        ttft_p50_seconds=line.median_ttft_ms / 1000,
        tpot_p50_seconds=line.median_tpot_ms / 1000,
        backend=line.backend,
        server_info=line.server_info or {},
        tag=line.tag,
        void=_objection(line),
    )


def _objection(line: _Line) -> str | None:
    failed = sum(bool(error) for error in line.errors or ())
    if failed:
        return f"{failed} of {len(line.errors or ())} requests failed"
    if line.completed == 0 or line.total_output_tokens == 0:
        return "no request was completed"
    if line.request_rate not in ("inf", math.inf):
        return f"requests came at a rate ({line.request_rate}/s), not as a closed loop (--request-rate inf)"
    if line.max_concurrency is None:
        return "no --max-concurrency: all requests were sent at once"
    if line.completed < line.max_concurrency:
        return f"{line.completed} requests cannot keep {line.max_concurrency} clients busy"
    return None


def _same(lengths: Sequence[int] | None) -> int | None:
    return lengths[0] if lengths and len(set(lengths)) == 1 else None


def write_bench_serving(
    path: Path,
    measurement: Measurement,
    *,
    backend: str = "sglang",
    server_info: Mapping[str, object] | None = None,
    details: bool = True,
) -> None:
    """Append one line for each repeat, by that tool's definitions; ``tag`` names cell, workload and repeat.

    ``server_info`` is what the server's ``/server_info`` says. Text is not tokenized again: the ``_retokenized`` keys
    hold the server's counts.
    """
    with path.open("a", encoding="utf-8") as file:
        for number, repeat in enumerate(measurement.repeats, start=1):
            tag = f"{measurement.cell_id} {measurement.workload} repeat {number}"
            line: dict[str, object] = {
                "tag": tag,
                "backend": backend,
                "server_info": dict(server_info) if server_info else None,
            }
            line |= _arguments(measurement) | _results(measurement, repeat)
            file.write(json.dumps(line | (_details(repeat.records) if details else {})) + "\n")


def _arguments(measurement: Measurement) -> dict[str, object]:
    return {
        "dataset_name": "mtpgate",
        "request_rate": math.inf,
        "max_concurrency": measurement.concurrency,
        "sharegpt_output_len": None,
        "random_input_len": measurement.input_tokens,
        "random_output_len": measurement.output_tokens,
        "random_range_ratio": 1.0,
    }


def _results(measurement: Measurement, repeat: Repeat) -> dict[str, object]:
    good = [record for record in repeat.records if record.error is None]
    duration = max(repeat.ended - repeat.started, 1e-9)
    inputs = sum(record.input_tokens for record in good)
    outputs = sum(record.output_tokens for record in good)
    latencies = [end_to_end_seconds(record) for record in good]
    tpots = [_tpot(record) for record in good if record.output_tokens > 1]
    itls = [gap for record in good for gap in itl_seconds(record)]
    return {
        "duration": duration,
        "completed": len(good),
        "total_input_tokens": inputs,
        "total_input_text_tokens": inputs,
        "total_input_vision_tokens": 0,
        "total_output_tokens": outputs,
        "total_output_tokens_retokenized": outputs,
        "request_throughput": len(good) / duration,
        "input_throughput": inputs / duration,
        "output_throughput": outputs / duration,
        "total_throughput": (inputs + outputs) / duration,
        **_summary("e2e_latency_ms", latencies),
        **_summary("ttft_ms", [value for record in good if (value := ttft_seconds(record)) is not None]),
        **_summary("tpot_ms", tpots),
        **_summary("itl_ms", itls),
        "concurrency": sum(latencies) / duration,
        "accept_length": repeat.accept_length,
        "max_output_tokens_per_s": _busiest_second(good),
        "max_concurrent_requests": min(measurement.concurrency, len(good)),
    }


def _tpot(record: RequestRecord) -> float:
    ttft = ttft_seconds(record) or 0.0
    return (end_to_end_seconds(record) - ttft) / (record.output_tokens - 1)


def _summary(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """Mean, median, deviation and percentiles in ms, 0 without samples, as numpy gives them there."""
    samples = sorted(1000 * value for value in seconds) or [0.0]
    mean = math.fsum(samples) / len(samples)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in samples) / len(samples))
    tails = {f"p{p}_{name}": quantile(samples, p / 100) for p in (90, 95, 99)}
    return {f"mean_{name}": mean, f"median_{name}": quantile(samples, 0.5), f"std_{name}": deviation, **tails}


def _busiest_second(records: Sequence[RequestRecord]) -> float:
    start = min((record.sent for record in records), default=0.0)
    seconds: dict[int, int] = {}
    for record in records:
        before = 0
        for arrival in record.arrivals:
            second = int(arrival.time - start)
            seconds[second] = seconds.get(second, 0) + arrival.completion_tokens - before
            before = arrival.completion_tokens
    return float(max(seconds.values(), default=0))


def _details(records: Sequence[RequestRecord]) -> dict[str, object]:
    return {
        "input_lens": [record.input_tokens for record in records],
        "output_lens": [record.output_tokens if record.error is None else 0 for record in records],
        "ttfts": [ttft_seconds(record) or 0.0 for record in records],
        "itls": [itl_seconds(record) for record in records],
        "generated_texts": [record.text for record in records],
        "errors": [record.error or "" for record in records],
    }
