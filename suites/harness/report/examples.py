"""Runs as the store would hold them after a night, good and bad; each is written through the store itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mtpgate.report.records import (
    CellRecord,
    CheckRecord,
    ExpectedCheck,
    FinishRecord,
    FitAttempt,
    LaunchRecord,
    LostCheck,
    MeasurementRecord,
    PhaseSpan,
    PrunedRecord,
    RunInfo,
    WaiverRecord,
)
from mtpgate.report.store import Store, plain
from suites.harness.report import budgets

REFERENCE = "no-mtp"
EAGLE = ("eagle-s1-k1-d2", "eagle-s3-k1-d4", "eagle-s3-k2-d6")
ASKED = ("startup", "parity", "acceptance", "throughput-C1", "throughput-C16", "serving")
SPEED = {REFERENCE: (21.4, 148.0), EAGLE[0]: (29.6, 171.0), EAGLE[1]: (34.2, 166.0), EAGLE[2]: (31.8, 139.0)}
ACCEPT = {EAGLE[0]: 1.71, EAGLE[1]: 2.63, EAGLE[2]: 2.88}
TITLES = {
    "startup": "reaches ready and passes every capture phase",
    "parity": "says the same as the reference cell",
    "acceptance": "accept length is above its floor",
    "throughput-C1": "tokens/s at C1 not below its baseline",
    "throughput-C16": "tokens/s at C16 not below its baseline",
    "serving": "still answers, and stops cleanly",
}
OOM = {
    "phase": "capture_target_verify",
    "kind": "oom_graph_capture",
    "summary": "Rank TP2 ran out of GPU memory while capturing the target's verify graphs (tried 7.50 GiB, 2.30 free): "
    "lower mem_fraction_static to at most 0.645.",
    "rank": "TP2",
    "numbers": {"tried": 7.5, "free": 2.3, "total": 94.97, "kv_tokens": 2970624},
    "advice": {
        "mem_fraction_static": "lower",
        "max": 0.645,
        "min": None,
        "other": ["lower cuda_graph_max_bs to 16, which still covers the workloads"],
    },
    "not_advice": ["raise mem_fraction_static: that leaves less room for graphs"],
    "evidence": [
        {"line": 212, "text": "Capturing batches (bs=32 avail_mem=9.80 GB):   0%|          | 0/9 [00:00<?, ?it/s]"},
        {
            "line": 231,
            "text": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.50 GiB. GPU 2 has a total "
            "capacity of 94.97 GiB of which 2.30 GiB is free. Including non-PyTorch memory, this process has 92.67 GiB "
            "memory in use.",
        },
    ],
}
LOG = "".join(
    f"[2026-03-02 01:0{number // 60}:{number % 60:02d} TP{number % 4}] Load weight begin. avail mem={number}.0 GB\n"
    for number in range(90)
)


@dataclass(frozen=True)
class Example:
    """A run in the making: what is not said is as on a good night."""

    cells: tuple[str, ...] = (REFERENCE, *EAGLE)
    outcomes: Mapping[tuple[str, str], CheckRecord] = field(default_factory=dict)
    died: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    waivers: Mapping[str, tuple[WaiverRecord, ...]] = field(default_factory=dict)
    pruned: tuple[PrunedRecord, ...] = (
        PrunedRecord("eagle-s3-k1-d6", "At topk 1 SGLang sets num_draft_tokens to num_steps + 1.", "eagle-s3-k1-d4"),
        PrunedRecord("eagle-s1-k4-d8", "num_steps * topk + 1 = 5 is less than num_draft_tokens 8: SGLang refuses it."),
    )
    speed: Mapping[tuple[str, str], float] = field(default_factory=dict)
    has_baselines: bool = True
    reported: int | None = None
    """Only so many checks were reported before the run was killed."""
    lost: tuple[LostCheck, ...] = ()
    log: str = LOG
    launches: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Fields of a cell's LaunchRecord to replace."""
    gpus: int = 0
    texts: Mapping[str, str] = field(default_factory=dict)
    """Fields of the RunInfo to replace."""


def check(cell: str, asked: str, state: str = "passed", message: str = "", **more: str) -> CheckRecord:
    return CheckRecord(
        cell=cell,
        check=asked.split("-", maxsplit=1)[0],
        test_id=f"suites/{asked}.py::test[{cell}]",
        title=TITLES.get(asked, asked),
        state=state,  # type: ignore[arg-type]
        message=message,
        seconds=3.2,
        started="2026-03-02T01:10:00+00:00",
        **more,
    )


def outcome(cell: str, asked: str, state: str, message: str = "", **more: str) -> dict[tuple[str, str], CheckRecord]:
    return {(cell, asked): check(cell, asked, state, message, **more)}


def write(root: Path, example: Example) -> Path:
    """Write ``example`` below ``root`` as its run would have."""
    store = Store(root)
    store.begin_run(run_info(example))
    asked = [(cell, name) for cell in example.cells for name in ASKED if (cell, name) != (REFERENCE, "parity")]
    store.expect(ExpectedCheck(cell, name.split("-")[0], check(cell, name).test_id) for cell, name in asked)
    done = asked if example.reported is None else asked[: example.reported]
    lost = {record.test_id for record in example.lost}
    for cell in dict.fromkeys(cell for cell, _ in done):
        write_cell(store, example, cell)
    for cell, name in done:
        record = example.outcomes.get((cell, name)) or usual(example, cell, name)
        if record.test_id not in lost:
            store.add_check(record)
    if example.reported is not None:
        if len(done) < len(asked):
            store.server_log(asked[len(done)][0]).write_text("Load weight begin.\n")
        return root
    if example.lost:
        store.write_lost(example.lost)
    red = any(
        (example.outcomes.get(key) or usual(example, *key)).state in ("failed", "broken", "fixed") for key in done
    )
    store.finish_run(FinishRecord("2026-03-02T01:14:40+00:00", int(red)))
    return root


def run_info(example: Example) -> RunInfo:
    info = RunInfo(
        started="2026-03-02T01:02:00+00:00",
        matrix_name="cpu-small",
        matrix_path="matrices/cpu-small.yaml",
        sglang_version="0.5.23",
        python="3.11.7",
        platform="Linux-6.1-x86_64",
        host="night-box",
        suite_revision="4f1c2ab",
        hardware="CPU, 2 cores",
        command_line="pytest -m mtp",
        baselines="reports/baselines/cpu-small.json" if example.has_baselines else "",
        pruned=example.pruned,
        cells=tuple(cell_record(example, cell) for cell in example.cells),
    )
    return replace(info, **example.texts)


def cell_record(example: Example, cell: str) -> CellRecord:
    speculative = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 3, "speculative_eagle_topk": 1}
    return CellRecord(
        id=cell,
        arguments={"mem_fraction_static": 0.6, **({} if cell == REFERENCE else speculative)},
        is_reference=cell == REFERENCE,
        gpus=example.gpus,
        accept_length_floor=None if cell == REFERENCE else 1.5,
        waivers=example.waivers.get(cell, ()),
    )


def usual(example: Example, cell: str, name: str) -> CheckRecord:
    if cell in example.died:
        message = str(example.died[cell].get("summary", "the server died"))
        return check(cell, name, "failed", message) if name == "startup" else check(cell, name, "blocked", message)
    if name.startswith("throughput") and not example.has_baselines:
        return check(cell, name, "no_baseline", f"no baseline is recorded for {cell}")
    return check(cell, name)


def write_cell(store: Store, example: Example, cell: str) -> None:
    died = example.died.get(cell)
    command = (
        "python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "models/small mtp",
        "--mem-fraction-static",
        "0.6",
    )
    spans = spans_of(cell, bool(died))
    seconds = max(span.end or span.begin + 14.2 for span in spans)
    store.server_log(cell).write_text(example.log)
    launch = LaunchRecord(
        command=command if cell == REFERENCE else (*command, "--speculative-algorithm", "EAGLE"),
        state="failed" if died else "ready",
        startup_seconds=seconds,
        phases=tuple(spans),
        exit_code=1 if died else None,
        diagnosis=died,
        resolved={"attention_backend": "torch_native", "max_total_num_tokens": 8192},
    )
    store.add_launch(cell, replace(launch, **example.launches.get(cell, {})))  # type: ignore[arg-type]
    if died:
        return
    for measurement in measurements_of(example, cell):
        store.add_measurement(cell, measurement)
    if cell != REFERENCE:
        store.write_json(cell, "parity", {"prompts": 12, "identical": 12, "reference": REFERENCE})
        store.write_json(cell, "acceptance", {"accept_length": ACCEPT.get(cell, 2.4), "floor": 1.5, "prompts": 12})


def spans_of(cell: str, died: bool) -> list[PhaseSpan]:
    spans = [PhaseSpan("dist_init", 0.4, 6.1), PhaseSpan("weight_load", 6.1, 14.3)]
    if cell == REFERENCE:
        return [*spans, PhaseSpan("kv_pool", 14.3, 15.0), PhaseSpan("warmup", 15.0, 19.8)]
    spans += [PhaseSpan("draft_load", 14.3, 17.2), PhaseSpan("kv_pool", 17.2, 18.3)]
    if died:
        return [*spans, PhaseSpan("capture_target_verify", 18.3, None)]
    return [
        *spans,
        PhaseSpan("capture_target_verify", 18.3, 24.0),
        PhaseSpan("capture_draft_decode", 24.0, 26.1),
        PhaseSpan("warmup", 26.1, 31.0),
    ]


def measurements_of(example: Example, cell: str) -> Iterable[MeasurementRecord]:
    for index, (workload, concurrency) in enumerate((("C1", 1), ("C16", 16))):
        baseline = SPEED.get(cell, (30.0, 150.0))[index]
        value = example.speed.get((cell, workload), baseline * (1.012 if index else 0.994))
        slow = value < baseline * 0.95
        yield MeasurementRecord(
            workload=workload,
            concurrency=concurrency,
            output_tokens_per_second=value,
            repeats=(value * 0.985, value, value * 1.011),
            accept_length=None if cell == REFERENCE else ACCEPT.get(cell, 2.4),
            ttft_p50_seconds=0.084,
            tpot_p50_seconds=1 / value,
            verdict_state=("regression" if slow else "pass") if example.has_baselines else "no_baseline",
            verdict_text=f"{(value / baseline - 1) * 100:.1f} % against 5 launches" if example.has_baselines else "",
            baseline_mean=baseline if example.has_baselines else None,
            baseline_bound=baseline * 0.95 if example.has_baselines else None,
            baseline_n=5 if example.has_baselines else 0,
        )


SLOW = (
    "eagle-s3-k1-d4 throughput C1 is 31.0 % below its baseline: 23.6 tokens/s against 34.2 (5 launches, bound 32.5).\n"
    "The accept length is as it was (2.63 against 2.61), so each step takes longer.\n"
    "repeats: 23.2, 23.6, 23.9"
)
MISMATCH = (
    "eagle-s3-k2-d6 parity: 2 of 12 prompts differ from no-mtp.\n"
    "  code-03, token 17: reference ' return' (41), this cell ' yield' (97)\n"
    "    reference: …def walk(tree):\\n    for node in tree:\\n        return node\n"
    "    this cell: …def walk(tree):\\n    for node in tree:\\n        yield node\n"
    "  chat-01, token 4: reference ' sure' (12), this cell ' of' (8)"
)
WAIVER = WaiverRecord(
    check="startup",
    reason="At fraction 0.70 with graphs up to batch 32 there is no room for the verify graphs.",
    kind="oom_graph_capture",
    phase="capture_target_verify",
    issue="https://example.org/issues/12",
    since="2026-02-10",
    until="2026-06-01",
)
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31mred\x1b[0m \x00\u202e \" ' & {{ 7*7 }}"

GREEN = Example()
SLOWER = Example(outcomes=outcome(EAGLE[1], "throughput-C1", "failed", SLOW), speed={(EAGLE[1], "C1"): 23.6})
OOM_AND_MORE = Example(
    died={EAGLE[0]: OOM},
    outcomes={
        **outcome(EAGLE[2], "parity", "failed", MISMATCH),
        **outcome(EAGLE[1], "throughput-C1", "failed", SLOW),
    },
    speed={(EAGLE[1], "C1"): 23.6},
)
PARITY = Example(outcomes=outcome(EAGLE[2], "parity", "failed", MISMATCH))
NO_BASELINE = Example(has_baselines=False)
KNOWN_BAD = Example(
    died={EAGLE[0]: OOM},
    waivers={EAGLE[0]: (WAIVER,)},
    outcomes=outcome(EAGLE[0], "startup", "known_bad", str(OOM["summary"])),
)
FIXED = Example(
    waivers={EAGLE[0]: (WAIVER,)},
    outcomes=outcome(
        EAGLE[0], "startup", "fixed", "eagle-s1-k1-d2 starts again, though its waiver says that it does not."
    ),
)
BROKEN = Example(
    outcomes=outcome(
        EAGLE[0], "throughput-C1", "broken", "GPU 3 fell off the bus while C1 was measured (NVML: unknown error)."
    )
)
CUT = Example(reported=9)
LOST = Example(lost=(LostCheck(EAGLE[2], "serving", check(EAGLE[2], "serving").test_id, "worker gw1 was killed"),))
HOSTILE_STRINGS = Example(
    cells=(REFERENCE, f"eagle-{HOSTILE}"),
    died={
        f"eagle-{HOSTILE}": {
            **OOM,
            "summary": HOSTILE,
            "rank": HOSTILE,
            "kind": HOSTILE,
            "not_advice": [HOSTILE],
            "evidence": [{"line": 1, "text": HOSTILE}],
            "advice": {"other": [HOSTILE]},
        }
    },
    pruned=(PrunedRecord(HOSTILE, HOSTILE, HOSTILE),),
    waivers={REFERENCE: (replace(WAIVER, reason=HOSTILE, issue="javascript:alert(1)"),)},
    outcomes=outcome(REFERENCE, "serving", "known_bad", HOSTILE, next_step=HOSTILE),
    log=HOSTILE * 3 + "\n",
    texts=dict.fromkeys(("matrix_name", "sglang_version", "host", "hardware", "command_line", "started"), HOSTILE),
)
MEMORY_OOM = Example(
    died={EAGLE[0]: {**OOM, "rank": "TP1", "advice": budgets.ADVICE}},
    gpus=4,
    texts={"hardware": "4 x NVIDIA RTX PRO 6000 Blackwell, 94.97 GiB", "matrix_name": "dsv4-flash"},
    launches={
        REFERENCE: {"budget": plain(budgets.HEALTHY_REFERENCE)},
        EAGLE[0]: {
            "budget": plain(budgets.CAPTURE_OOM),
            "forecast": budgets.FORECAST,
            "unmatched": ("Reserving graph workspace of 512 MB", "Draft stage 2 of 3 begins"),
            "fits": (
                FitAttempt({"cuda_graph_max_bs": 16}, "failed", 61.2, "Out of memory at verify graphs, batch 16."),
                FitAttempt({"mem_fraction_static": 0.6}, "ready", 83.4, "Ready.", plain(budgets.HEALTHY_EAGLE)),
            ),
        },
        EAGLE[1]: {"budget": plain(budgets.HEALTHY_EAGLE), "forecast": {**budgets.FORECAST, "fits": True}},
        EAGLE[2]: {"budget": plain(budgets.UNEVEN)},
    },
)
MEMORY_CPU = Example(
    launches={REFERENCE: {"budget": plain(budgets.CPU)}, EAGLE[0]: {"budget": plain(budgets.CPU_EAGLE)}}
)
MEMORY_HOSTILE = Example(
    launches={
        REFERENCE: {
            "budget": {"ranks": [{"rank": HOSTILE, "before_load": 10.0, "weights": 2.0, "left": 1.0}]},
            "forecast": {"from_cell": HOSTILE, "fits": True, "predicted": {HOSTILE: 1.0}, "text": HOSTILE},
            "unmatched": (HOSTILE,),
        },
        EAGLE[0]: {"budget": {"ranks": HOSTILE}, "fits": (FitAttempt({HOSTILE: HOSTILE}, "ready", 1.0, HOSTILE),)},
        EAGLE[1]: {
            "budget": {"fraction": -3.0, "ranks": [{"rank": None, "before_load": 0.0, "weights": -5.0, "wanted": 1e9}]}
        },
    },
    died={EAGLE[0]: {**OOM, "advice": {**OOM["advice"], "text": [HOSTILE]}, "unmatched": [HOSTILE]}},  # type: ignore[dict-item]
)


def many(cells: int = 400, failing: int = 60) -> Example:
    """A large matrix, of which the first cells fail: a few at start-up, the others by their speed."""
    names = tuple(
        f"eagle-s{number % 4 + 1}-k1-d{number % 4 + 2}-f0.{50 + number % 40}-bs{number}" for number in range(cells)
    )
    return Example(
        cells=(REFERENCE, *names[: cells - 1]),
        died=dict.fromkeys(names[: failing // 2], OOM),
        outcomes={
            (name, "throughput-C1"): check(name, "throughput-C1", "failed", f"{name} throughput C1 is 9 % slower")
            for name in names[failing // 2 : failing]
        },
    )
