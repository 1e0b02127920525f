"""``python -m mtpgate baseline``: what is accepted, by whom and why, and what a run says against it."""

from __future__ import annotations

import datetime
import fnmatch
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType

from mtpgate.errors import UsageError
from mtpgate.judge.baselines import BaselineStore
from mtpgate.judge.proposals import ProposalStore
from mtpgate.report.run import load_run
from mtpgate.report.store import plain
from mtpgate.review import tables
from mtpgate.review.accept import accept as accept_launches
from mtpgate.review.accept import accept_proposed
from mtpgate.review.bench_serving import Told, propose, target
from mtpgate.review.diff import differences
from mtpgate.review.past import past
from mtpgate.review.show import accepted
from mtpgate.review.who import whoami

ROOT = Path(__file__).resolve().parents[2]
NARROWEST = 160
"""Columns of a table that goes into a file or a pipe."""

app = typer.Typer(
    name="baseline",
    help="What a cell's speed is judged by: show it, accept launches, compare a run with it.",
    no_args_is_help=True,
)
Baselines = Annotated[Path, typer.Option("--baselines", help="The folder of the accepted launches.")]
RunFolder = Annotated[Path, typer.Option("--run", help="The folder of a finished run.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
DEFAULT_BASELINES = ROOT / "reports" / "baselines"
DEFAULT_RUN = ROOT / "reports" / "out"


@app.command()
def show(
    cells: Annotated[list[str] | None, typer.Argument(metavar="[CELL]...", help="Ids or shell patterns.")] = None,
    proposed: Annotated[
        bool, typer.Option("--proposed", help="Show what was imported and waits for a review.")
    ] = False,
    baselines: Baselines = DEFAULT_BASELINES,
    as_json: Json = False,
) -> None:
    """Show the accepted launches of each cell and workload: mean, spread, and the smallest drop that they can show.

    With CELL each launch is listed too: when it was measured, by which run, who accepted it and why.

    Example: python -m mtpgate baseline show 'eagle-*'
    """
    if proposed:
        _show_proposed(ProposalStore(baselines), cells or ["*"], as_json=as_json)
        return
    groups = accepted(BaselineStore(baselines), cells or ())
    if as_json:
        _print_json(
            [
                {
                    "key": group.key.model_dump(),
                    "n": len(group.launches),
                    "mean": group.mean,
                    "spread": group.spread,
                    "findable_drop": group.findable_drop,
                    "launches": [launch.model_dump(mode="json", exclude={"key"}) for launch in group.launches],
                }
                for group in groups
            ]
        )
    elif groups:
        _print(tables.shown(groups, launches=bool(cells)))
    else:
        print(f"{baselines}: nothing has been accepted yet (python -m mtpgate baseline accept --help)")


@app.command()
def accept(
    cells: Annotated[list[str], typer.Argument(metavar="CELL...", help="Ids or shell patterns of the run's cells.")],
    why: Annotated[str, typer.Option(help="The reason, as a reviewer shall read it.")],
    run: RunFolder = DEFAULT_RUN,
    who: Annotated[str | None, typer.Option(help="Who accepts; default: git's user.name, else the login name.")] = None,
    workload: Annotated[list[str] | None, typer.Option(help="Only this workload, e.g. C16 (repeatable).")] = None,
    proposed: Annotated[bool, typer.Option("--proposed", help="Accept what was imported, instead of a run's.")] = False,
    baselines: Baselines = DEFAULT_BASELINES,
) -> None:
    """Accept what a finished run measured of these cells as their baseline: one line a launch, never overwritten.

    Refused: a launch that failed another check, a void measurement, a launch that was accepted before.

    Example: python -m mtpgate baseline accept 'eagle-*' --why "first night on the new driver"
    """
    name = whoami(ROOT) if who is None else who
    store, now = BaselineStore(baselines), datetime.datetime.now().astimezone().replace(microsecond=0)
    chosen = workload or ()
    if proposed:
        taken = accept_proposed(ProposalStore(baselines), cells, store, why=why, who=name, now=now, workloads=chosen)
    else:
        taken = accept_launches(load_run(run), cells, store, why=why, who=name, now=now, workloads=chosen)
    _print(tables.accepted_now(taken))
    print(f"written below {baselines}; commit it for review")


@app.command()
def diff(run: RunFolder = DEFAULT_RUN, baselines: Baselines = DEFAULT_BASELINES, as_json: Json = False) -> None:
    """Compare what a run measured with the accepted launches; say which part of a key changed, and what that leaves.

    Example: python -m mtpgate baseline diff --run reports/out/previous
    """
    stored = load_run(run)
    lines = differences(stored, BaselineStore(baselines))
    if as_json:
        _print_json([asdict(line) for line in lines])
    elif lines:
        _print(tables.compared(lines))
    else:
        raise UsageError(f"{run}: this run measured no speed (pytest -m throughput does)")


@app.command()
def history(
    cells: Annotated[list[str] | None, typer.Argument(metavar="[CELL]...", help="Ids or shell patterns.")] = None,
    baselines: Baselines = DEFAULT_BASELINES,
    as_json: Json = False,
) -> None:
    """Show every launch that this machine has measured, accepted or not, and what became of it.

    Example: python -m mtpgate baseline history eagle-s1-k1-d2
    """
    lines = past(baselines, cells or ())
    if as_json:
        _print_json([{**line.entry.model_dump(mode="json"), "state": line.state} for line in lines])
    elif lines:
        _print(tables.remembered(lines))
    else:
        print(f"{baselines}: nothing has been measured yet (pytest -m throughput does)")


@app.command(name="import")
def import_file(
    file: Annotated[Path, typer.Argument(help="A result file of sglang.bench_serving (JSON lines).")],
    matrix: Annotated[Path, typer.Option(help="The matrix file whose cell was launched.")],
    cell: Annotated[str, typer.Option(help="The cell that was launched.")],
    hardware: Annotated[str | None, typer.Option(help="As `baseline show` writes it for this machine.")] = None,
    driver: Annotated[str | None, typer.Option(help="The GPU driver's version.")] = None,
    model: Annotated[str | None, typer.Option(help="The model served, if not the matrix's.")] = None,
    sglang: Annotated[str | None, typer.Option(help="SGLang's version.")] = None,
    attention_backend: Annotated[str | None, typer.Option(help="As the server resolved it.")] = None,
    input_tokens: Annotated[int | None, typer.Option(help="Input tokens of each request.")] = None,
    output_tokens: Annotated[int | None, typer.Option(help="Output tokens of each request.")] = None,
    baselines: Baselines = DEFAULT_BASELINES,
) -> None:
    """Propose the runs of a result file of sglang.bench_serving as baselines; a review accepts them with a reason.

    What the file does not tell of the launch is asked for by the options. Nothing is judged by a proposal:
    `baseline show --proposed` lists them, `baseline accept --proposed CELL --why TEXT` takes them.

    Example: python -m mtpgate baseline import night.jsonl --matrix matrices/rtx-pro-6000-dsv4-flash.yaml
    --cell eagle-s1-k1-d2-f0.60-bs16 --hardware "8 x NVIDIA RTX PRO 6000 Blackwell, 95.59 GiB" --driver 580.95
    """
    whole, asked = target(matrix, cell)
    told = Told(
        matrix=whole,
        cell=asked,
        hardware=hardware,
        driver=driver,
        model=model,
        sglang=sglang,
        attention_backend=attention_backend,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )
    found = propose(file, told)
    for line in found.left_out:
        print(f"left out: {line}", file=sys.stderr)
    added = ProposalStore(baselines).add(found.proposals)
    if not added:
        raise UsageError(f"{file}: all of its runs have been proposed before (baseline show --proposed)")
    _print(tables.waiting(added))
    print(f"proposed; after a review: python -m mtpgate baseline accept --proposed {cell} --why TEXT")


def _show_proposed(store: ProposalStore, patterns: list[str], *, as_json: bool) -> None:
    found = [
        proposal
        for matrix, cell in store.cells()
        if any(fnmatch.fnmatchcase(cell, pattern) for pattern in patterns)
        for proposal in store.waiting(matrix, cell)
    ]
    if as_json:
        _print_json([proposal.model_dump(mode="json") for proposal in found])
    elif found:
        _print(tables.waiting(found))
    else:
        print("nothing is proposed that waits for a review")


def _print(parts: Iterable[RenderableType]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = max(console.width, NARROWEST)
    for part in parts:
        console.print(part)


def _print_json(value: object) -> None:
    print(json.dumps(plain(value), indent=2, ensure_ascii=False))
