"""``python -m mtpgate``: the one door for people."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mtpgate.engine.environment import engine_missing
from mtpgate.engine.model import ensure_model
from mtpgate.errors import MtpgateError, UsageError
from mtpgate.fit_progress import FitProgress
from mtpgate.fitting import fit_cell
from mtpgate.gpu.inventory import read_inventory
from mtpgate.matrix.describe import describe, tables
from mtpgate.matrix.expand import expand
from mtpgate.matrix.load import load_matrix
from mtpgate.matrix.waivers import load_waivers
from mtpgate.plan import Request, make_plan
from mtpgate.report import told
from mtpgate.report.page import render
from mtpgate.review import commands as review
from mtpgate.server import fit_words
from mtpgate.server.diagnose import examine_file
from mtpgate.server.fit_search import MOST_LAUNCHES, RESOLUTION

ROOT = Path(__file__).resolve().parent.parent
NOTHING_FITS = 1
BAD_USE = 2
INTERRUPTED = 130

app = typer.Typer(
    name="mtpgate",
    help="The nightly gate for SGLang's multi-token prediction.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(review.app)
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.command()
def cells(
    matrix: Annotated[Path | None, typer.Option(help="Matrix file; default: the one that fits this machine.")] = None,
    as_json: Json = False,
) -> None:
    """Show which cells a matrix comes to, and what is pruned, with the reason.

    Example: python -m mtpgate cells --matrix matrices/rtx-pro-6000-dsv4-flash.yaml
    """
    # Any matrix can be looked at anywhere; only a launch needs its hardware.
    path = matrix or make_plan(Request(ROOT)).path
    waivers = ROOT / "matrices" / "known_bad.yaml"
    expansion = expand(load_matrix(path), load_waivers(waivers) if waivers.exists() else ())
    if as_json:
        _print_json(describe(expansion))
    else:
        console = Console()
        console.print(f"{path}; the arguments' names are checked against SGLang when it is launched", highlight=False)
        console.print(*tables(expansion))


@app.command()
def diagnose(
    log: Annotated[Path, typer.Argument(help="A server's log.")],
    context: Annotated[
        Path | None, typer.Option(help="JSON file with what is known besides the log (tp, mem_fraction_static, ...).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what failed in a server's log: phase, kind, rank, evidence, the smallest fix, and where the memory went.

    Example: python -m mtpgate diagnose server.log --json
    """
    found, timeline = examine_file(_readable(log), _context(context))
    if as_json:
        _print_json(told.as_json(found, timeline))
    else:
        told.print_diagnosis(Console(highlight=False, soft_wrap=True), found, timeline)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine has, and what `pytest -m mtp` would do on it.

    Example: python -m mtpgate doctor
    """
    inventory = read_inventory()
    facts: dict[str, Any] = {
        "gpus": [asdict(gpu) for gpu in inventory.gpus],
        "driver": inventory.driver,
        "no_gpus_because": inventory.why_none,
        "cpu_engine": engine_missing(Path(sys.executable)) or "ready",
    }
    try:
        plan = make_plan(Request(ROOT), inventory=inventory)
        facts["would_run"] = {"matrix": plan.matrix.name, "cells": [cell.id for cell in plan.cells]}
    except UsageError as error:
        facts["would_run"] = {"error": str(error)}
    if as_json:
        _print_json(facts)
        return
    for gpu in inventory.gpus:
        print(f"GPU {gpu.index}: {gpu.name}, {gpu.free_gib:.1f} of {gpu.total_gib:.1f} GiB free")
    if not inventory.gpus:
        print(f"GPUs: none ({inventory.why_none})")
    print(f"CPU engine: {facts['cpu_engine']}")
    would = facts["would_run"]
    if "error" in would:
        print(f"pytest -m mtp: would stop: {would['error']}")
    else:
        print(
            f"pytest -m mtp: would launch {len(would['cells'])} cells of {would['matrix']}: {', '.join(would['cells'])}"
        )


@app.command("evaluate-rule")
def evaluate_rule(
    nights: Annotated[int, typer.Option(min=10, help="Simulated nights of a matrix for each row.")] = 5000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same table.")] = 1,
    as_json: Json = False,
) -> None:
    """Simulate nights, and say how often the verdict on speeds cries wolf and what it finds, beside other rules.

    Example: python -m mtpgate evaluate-rule --nights 2000
    """
    # scipy and numpy take a second to import, which no other command needs.
    from mtpgate.judge import evaluation, evaluation_table  # noqa: PLC0415

    rows, creep = evaluation.evaluate(nights=nights, seed=seed), evaluation.creep(histories=20, seed=seed)
    if as_json:
        _print_json(evaluation_table.as_json(rows, creep))
    else:
        console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
        console.print(evaluation_table.table(rows))
        console.print(evaluation_table.creep_words(creep))


@app.command()
def model(
    folder: Annotated[Path, typer.Argument(help="Where the model goes.")] = ROOT / ".cache" / "mtpgate" / "model",
) -> None:
    """Make the small MTP model that the CPU matrix serves.

    Example: python -m mtpgate model
    """
    print(ensure_model(folder))


@app.command()
def fit(
    cell: Annotated[str, typer.Argument(help="Id of a cell, as `mtpgate cells` lists it.")],
    matrix: Annotated[Path | None, typer.Option(help="Matrix file; default: the one that fits this machine.")] = None,
    out: Annotated[Path, typer.Option(help="Where the result and the logs go.")] = ROOT / "reports" / "out",
    max_launches: Annotated[int, typer.Option(help="End after so many launches, with the interval known then.")] = (
        MOST_LAUNCHES
    ),
    resolution: Annotated[float, typer.Option(help="How finely the fraction is sought.")] = RESOLUTION,
    gpus: Annotated[int | None, typer.Option(help="Use N of this machine's GPUs.")] = None,
    sglang_python: Annotated[Path | None, typer.Option(help="The interpreter that has the SGLang under test.")] = None,
    server_command: Annotated[str | None, typer.Option(help="Start the server with this command.")] = None,
    model: Annotated[str | None, typer.Option(help="The model to serve instead of the matrix's.")] = None,
    fault: Annotated[str | None, typer.Option(help="Break the embedded CPU engine on purpose.")] = None,
    as_json: Json = False,
) -> None:
    """Find the largest memory fraction, and then graph batch limit, with which a cell's server starts.

    Launches it for real, again and again. Exit code 0: found; 1: nothing fits, or it fails otherwise.

    Example: python -m mtpgate fit eagle-s1-k1-d2-f0.70-bs32 --max-launches 8
    """
    request = Request(
        ROOT,
        matrix=matrix,
        cells=(cell,),
        gpus=gpus,
        sglang_python=sglang_python,
        server_command=tuple(shlex.split(server_command)) if server_command else None,
        model=model,
        fault=fault,
    )
    progress = FitProgress(sys.stderr)
    try:
        fitted = fit_cell(request, out=out, resolution=resolution, max_launches=max_launches, progress=progress)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        _print_json(fitted.document)
    else:
        print(fit_words.told(fitted.found))
    print(f"written: {fitted.path}", file=sys.stderr)
    if fitted.found.ended == "interrupted":
        raise typer.Exit(INTERRUPTED)
    if fitted.found.fraction is None or fitted.found.ended == "failure":
        raise typer.Exit(NOTHING_FITS)


@app.command()
def report(out: Annotated[Path, typer.Option(help="The run's folder.")] = ROOT / "reports" / "out") -> None:
    """Render the page of a stored run again.

    Example: python -m mtpgate report --out reports/out
    """
    print(render(out))


def _readable(path: Path) -> Path:
    if not path.is_file():
        raise UsageError(f"{path}: {'no file' if path.exists() else 'no such file'}")
    return path


def _context(path: Path | None) -> dict[str, object]:
    if path is None:
        return {}
    try:
        content = json.loads(_readable(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected a JSON object, found {type(content).__name__}")
    # A whole case file may be given as well as its context.
    inner = content.get("context", content)
    return dict(inner) if isinstance(inner, dict) else content


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def main() -> None:
    """Run a command; what a person asked wrongly ends in one message and exit code 2."""
    try:
        app()
    except MtpgateError as error:
        print(f"mtpgate: {error}", file=sys.stderr)
        sys.exit(BAD_USE)


if __name__ == "__main__":
    main()
