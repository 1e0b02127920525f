"""Runs a healthy matrix again and again, and counts what went red: each red is a false alarm.

    python tools/clean_runs.py --runs 20 --marks parity --matrix matrices/more/cpu-small-bf16.yaml --out /tmp/clean

Each run is ``pytest -m MARKS --matrix=FILE`` with a folder of its own below ``--out``. ``runs.json`` there is written
after each run, and a second call goes on at the run that the first had reached; a run that was cut short is run again.
Words after ``--`` are put in front of the command (``-- nice -n 10 flock /tmp/lock``). Exit code: 0 if all runs are
there and clean, 1 if any was red or broken, 2 if it was asked wrongly, 3 if it did not come to its end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mtpgate.errors import UsageError  # noqa: E402 - found where this script lies
from mtpgate.report.run import Run, load_run  # noqa: E402
from mtpgate.report.text import elapsed  # noqa: E402

BAD_USE, CUT_SHORT = 2, 3
INTERRUPTED = 2
"""pytest's exit code."""
RED = ("failed", "fixed")
SHOWN_CHARACTERS = 300
DONE = (0, 1)
"""pytest's exit codes of a run that came to its end; others are run again."""


@dataclass(frozen=True)
class CleanRun:
    """What one run came to."""

    number: int
    exit_code: int
    seconds: float
    asked: int
    """Checks that had an outcome."""
    missing: int
    """Checks that were collected and had none."""
    red: dict[str, str]
    """The first line of each check that is red, by its test id: a false alarm."""
    broken: dict[str, str]
    """Of each that says nothing of the product."""
    differing: int
    """Answers that left the reference's."""
    near_ties: int
    """Of these, those that are near-ties over their whole length, by the reference that was launched again."""
    divergences: int
    tolerance: float | None
    """The largest of the cells'."""

    @property
    def clean(self) -> bool:
        return self.exit_code == 0 and not self.red and not self.broken and not self.missing


def main() -> int:
    options = parse(sys.argv[1:])
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "runs.json"
    asked = {"marks": options.marks, "matrix": str(options.matrix), "options": options.option}
    runs = known(kept, asked)
    console = Console(highlight=False)
    while len(runs) < options.runs:
        number = len(runs) + 1
        found = one(number, options)
        if found is None:
            console.print(
                f"run {number} was cut short; see {options.out / f'run-{number:03}.log'}. Call again to go on"
            )
            return CUT_SHORT
        runs.append(found)
        keep(kept, asked, runs)
        console.print(f"run {number} of {options.runs}: {told(found)}")
    console.print(table(runs))
    return 0 if all(run.clean for run in runs) else 1


def parse(words: list[str]) -> argparse.Namespace:
    own, before = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, metavar="N")
    parser.add_argument("--marks", default="mtp", help="as pytest's -m (default: mtp)")
    parser.add_argument("--matrix", type=Path, required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--option", action="append", default=[], help="a further option of pytest; repeatable")
    options = parser.parse_args(own)
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: at least 1 is expected")
    if not options.matrix.is_file():
        parser.error(f"--matrix {options.matrix}: no such file")
    options.before = before
    options.matrix, options.out = options.matrix.resolve(), options.out.resolve()
    return options


def refuse(message: str) -> NoReturn:
    sys.stderr.write(f"clean_runs: {message}\n")
    sys.exit(BAD_USE)


def known(path: Path, asked: dict[str, Any]) -> list[CleanRun]:
    """The runs that an earlier call had finished. Ends with exit code 2 if they were runs of something else."""
    if not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["asked"] != asked:
        refuse(f"{path} has runs of {found['asked']}, now asked: {asked}; name another --out")
    return [CleanRun(**run) for run in found["runs"]]


def keep(path: Path, asked: dict[str, Any], runs: list[CleanRun]) -> None:
    beside = path.with_suffix(".new")
    content = {"asked": asked, "clean": sum(run.clean for run in runs), "runs": [asdict(run) for run in runs]}
    beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def one(number: int, options: argparse.Namespace) -> CleanRun | None:
    """Run it; None if it did not come to its end."""
    out = options.out / f"run-{number:03}"
    shutil.rmtree(out, ignore_errors=True)
    pytest = [sys.executable, "-m", "pytest", "-m", options.marks, f"--matrix={options.matrix}", f"--out={out}"]
    with out.with_suffix(".log").open("wb") as log:
        command = [*options.before, *pytest, "-p", "no:cacheprovider", *options.option]
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        exit_code = ended(process)
    if exit_code == INTERRUPTED:
        return None
    try:
        run = load_run(out)
    except UsageError as error:
        refuse(f"run {number}: {error}\nsee {out.with_suffix('.log')}")
    if exit_code not in DONE or run.finished is None:
        return None
    return summed(number, exit_code, run)


def ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code. Ctrl-C reaches pytest as well, which stops its server before it ends: that is waited for."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def summed(number: int, exit_code: int, run: Run) -> CleanRun:
    parity = [cell.parity for cell in run.cells if cell.parity is not None]
    tolerances = [found.get("weighed_tolerance", found.get("tolerance")) for found in parity]
    return CleanRun(
        number=number,
        exit_code=exit_code,
        # Without what the words before the command waited for.
        seconds=elapsed(run.info.started, run.finished.finished if run.finished else "") or 0.0,
        asked=len(run.checks),
        missing=len(run.missing),
        red=messages(run, RED),
        broken=messages(run, ("broken", "blocked")),
        differing=sum(found.get("weighed", 0) for found in parity),
        near_ties=sum(found.get("weighed_near_ties", 0) for found in parity),
        divergences=sum(found.get("weighed_differences", 0) for found in parity),
        tolerance=max((one for one in tolerances if one is not None), default=None),
    )


def messages(run: Run, states: tuple[str, ...]) -> dict[str, str]:
    return {
        check.test_id: (check.message.splitlines() or [""])[0][:SHOWN_CHARACTERS]
        for check in run.checks
        if check.state in states
    }


def told(run: CleanRun) -> str:
    alarms = f"{len(run.red)} false alarms, {len(run.broken)} broken" if not run.clean else "clean"
    return f"{alarms}; {run.differing} answers left the reference, {run.near_ties} near-ties; {run.seconds:.0f} s"


def table(runs: list[CleanRun]) -> Table:
    clean = sum(run.clean for run in runs)
    shown = Table(title=f"{clean} of {len(runs)} runs clean", title_justify="left")
    for name in ("run", "exit", "s", "checks", "red", "broken", "left", "near-ties", "divergences", "tolerance"):
        shown.add_column(name, justify="right")
    for run in runs:
        tolerance = "" if run.tolerance is None else f"{run.tolerance:.2g}"
        figures = (run.number, run.exit_code, f"{run.seconds:.0f}", run.asked, len(run.red), len(run.broken))
        shown.add_row(*map(str, (*figures, run.differing, run.near_ties, run.divergences, tolerance)))
    return shown


if __name__ == "__main__":
    sys.exit(main())
