"""From a result file of ``sglang.bench_serving`` to proposed launches.

The file tells concurrency, counts and speeds, and in newer versions the server's arguments. What else a key needs
(which cell of which matrix, the hardware, the driver) a person has to say. One line is one pass of the tool, not one
launch of the server: lines of the same workload and the same server (its ``random_seed``, which SGLang draws anew at
each launch) are taken for repeats of one launch; where the file does not tell, all lines of it are. That errs on the
careful side: fewer launches than there were, never more.
"""

from __future__ import annotations

import datetime
import hashlib
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtpgate.errors import UsageError
from mtpgate.judge.baselines import BaselineKey, BaselineLaunch, Origin
from mtpgate.judge.imported import PASS
from mtpgate.judge.proposals import Proposal
from mtpgate.load.bench_serving import BenchServingRun, read_bench_serving
from mtpgate.matrix.cell import Cell
from mtpgate.matrix.expand import expand
from mtpgate.matrix.load import load_matrix
from mtpgate.matrix.schema import Matrix
from mtpgate.review.accept import no_such_cell
from mtpgate.server.info import compare_with_server_info

NOT_REVIEWED = "proposed, not reviewed"
SHOWN_DIFFERENCES = 4


@dataclass(frozen=True)
class Told:
    """What a person says of the launches in a file; None where the file shall tell."""

    matrix: Matrix
    cell: Cell
    hardware: str | None = None
    driver: str | None = None
    model: str | None = None
    sglang: str | None = None
    attention_backend: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None

    @property
    def model_identity(self) -> str | None:
        """As :attr:`mtpgate.plan.Prepared.model_identity` has it; None for a model that a script makes."""
        source = self.matrix.model
        if self.model is not None or source.path.startswith("builtin:"):
            return self.model
        return f"{source.path} {source.revision}" if source.revision else source.path


@dataclass(frozen=True)
class Proposed:
    """What a file comes to."""

    proposals: tuple[Proposal, ...]
    left_out: tuple[str, ...]
    """Runs that cannot be compared, with the reason."""


def target(matrix_file: Path, cell: str) -> tuple[Matrix, Cell]:
    """The matrix and its cell. Raises UsageError for a matrix that cannot be read, or that has no such cell."""
    matrix = load_matrix(matrix_file)
    cells = {known.id: known for known in expand(matrix).cells}
    if cell not in cells:
        raise UsageError(no_such_cell(cell, sorted(cells), f"in {matrix_file}"))
    return matrix, cells[cell]


def propose(path: Path, told: Told) -> Proposed:
    """Read ``path`` and make proposals of its runs.

    Raises:
        UsageError: the file is none of the tool's, has no run that counts, its server was not launched as the cell is,
            or something is missing of the key; the message names the options that would tell it.
    """
    runs = read_bench_serving(path)
    left_out = tuple(f"{run.source}: {run.void}" for run in runs if run.void is not None)
    counting = [run for run in runs if run.void is None]
    if not counting:
        raise UsageError(f"{path}: no run in it can be compared: " + "; ".join(left_out[:3]))
    for run in counting:
        _same_launch(run, told)
    missing = sorted({option for run in counting for option in _missing(run, told)})
    if missing:
        raise UsageError(f"{path} does not tell all that makes launches comparable: give {', '.join(missing)}")
    lines = path.read_bytes().split(b"\n")
    when = datetime.datetime.fromtimestamp(path.stat().st_mtime).astimezone().replace(microsecond=0)
    groups: dict[tuple[BaselineKey, object], list[BenchServingRun]] = {}
    for run in counting:
        groups.setdefault((_key(run, told), run.server_info.get("random_seed")), []).append(run)
    proposals = tuple(
        _proposal(key, group, _named(path.name, lines, group[0]), when) for (key, _), group in groups.items()
    )
    return Proposed(proposals, left_out)


def _named(name: str, lines: Sequence[bytes], first: BenchServingRun) -> str:
    """What names a launch for good: the tool appends to its files, so that neither their size nor their end does."""
    number = int(first.source.rpartition(", line ")[2])
    return f"{name} from line {number} sha256:{hashlib.sha256(lines[number - 1]).hexdigest()[:12]}"


def _same_launch(run: BenchServingRun, told: Told) -> None:
    if not run.server_info:
        return
    found = compare_with_server_info(told.cell.arguments, run.server_info)
    wrong = [str(difference) for difference in found if difference.reported]
    if wrong:
        raise UsageError(f"{run.source}: not a launch of {told.cell.id}: {'; '.join(wrong[:SHOWN_DIFFERENCES])}")


def _missing(run: BenchServingRun, told: Told) -> Iterable[str]:
    info = run.server_info
    known = {
        "--hardware": told.hardware,
        "--model": told.model_identity,
        "--sglang": told.sglang or run.sglang_version,
        "--attention-backend": told.attention_backend or info.get("attention_backend"),
        "--input-tokens": told.input_tokens or run.input_tokens,
        "--output-tokens": told.output_tokens or run.output_tokens,
    }
    yield from (option for option, value in known.items() if value is None)
    if told.driver is None and told.cell.gpus:
        yield "--driver"


def _key(run: BenchServingRun, told: Told) -> BaselineKey:
    info = run.server_info
    inputs, outputs = told.input_tokens or run.input_tokens, told.output_tokens or run.output_tokens
    return BaselineKey(
        matrix=told.matrix.name,
        cell=told.cell.id,
        workload=f"C{run.concurrency} in{inputs} out{outputs} requests{run.requests} {PASS}",
        sglang=told.sglang or str(run.sglang_version),
        model=str(told.model_identity),
        hardware=str(told.hardware),
        gpus=told.cell.gpus,
        attention_backend=told.attention_backend or str(info.get("attention_backend")),
        engine=told.matrix.engine,
        driver=told.driver or "",
    )


def _proposal(key: BaselineKey, runs: Sequence[BenchServingRun], name: str, when: datetime.datetime) -> Proposal:
    lengths = [run.accept_length for run in runs if run.accept_length is not None]
    speeds = tuple(round(run.pass_tokens_per_second, 4) for run in runs)
    notes = [
        "tokens/s of the whole pass, ramp-up and tail included",
        "of other prompts than this suite's: with speculation the speed depends on the text",
        "the time is the file's last change",
    ]
    if lengths:
        mean = statistics.median(lengths)
        notes.append(f"accept length {mean:.2f} is the server's average since its start: not taken over")
    served = runs[0].server_info.get("model_path")
    if served and not key.model.startswith(str(served)):
        notes.append(f"the server had its model from {served}")
    return Proposal(
        launch=BaselineLaunch(
            key=key,
            when=when,
            why=NOT_REVIEWED,
            tokens_per_second=statistics.median(speeds),
            repeats=speeds,
            ttft_p50_seconds=round(statistics.median(run.ttft_p50_seconds for run in runs), 6),
            tpot_p50_seconds=round(statistics.median(run.tpot_p50_seconds for run in runs), 6),
            origin=Origin(
                imported_from=name,
                sglang_version=runs[0].sglang_version or key.sglang,
            ),
        ),
        notes=tuple(notes),
    )
