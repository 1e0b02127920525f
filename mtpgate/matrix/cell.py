"""What the rest of the suite knows of a matrix: frozen values, built by :mod:`mtpgate.matrix.expand` alone."""

from __future__ import annotations

import datetime
import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

ArgumentValue = str | int | float | bool
"""A server argument's value. ``True`` is a bare flag; ``False`` leaves the flag out."""


@dataclass(frozen=True)
class Speculation:
    """The speculative settings of a cell, as SGLang will run them (after its own rewriting)."""

    algorithm: str
    num_steps: int
    eagle_topk: int
    num_draft_tokens: int


@dataclass(frozen=True)
class Workload:
    """One load: ``concurrency`` closed-loop clients, exact token counts for each request."""

    concurrency: int
    input_tokens: int
    output_tokens: int
    requests: int
    """Requests in one repeat; at least ``concurrency``."""
    repeats: int = 3
    api: Literal["generate", "completions"] = "generate"
    """SGLang's native stream, or the OpenAI-compatible one."""

    @property
    def name(self) -> str:
        return f"C{self.concurrency}" + ("" if self.api == "generate" else f"-{self.api}")


@dataclass(frozen=True)
class Waiver:
    """A known-bad mark: which failure of which check of which cells is excused, and why."""

    cell: str
    """A shell-style pattern over cell ids."""
    check: str
    """``startup``, ``parity``, ``acceptance``, ``throughput`` or ``serving``."""
    reason: str
    kind: str | None = None
    """The diagnosis kind that is excused (start-up), e.g. ``oom_graph_capture``; None excuses any."""
    phase: str | None = None
    message: str | None = None
    """A regular expression that the failure's text must contain; None excuses any."""
    issue: str | None = None
    since: datetime.date | None = None
    until: datetime.date | None = None
    matrix: str | None = None
    """A shell-style pattern over matrix names; None is every matrix."""
    test: str | None = None
    """A shell-style pattern over a test's names: its function, workload or probe; None is every test of the check."""

    def applies_to(self, matrix_name: str) -> bool:
        return self.matrix is None or fnmatch.fnmatchcase(matrix_name, self.matrix)

    def covers(self, cell_id: str, check: str) -> bool:
        return self.check == check and fnmatch.fnmatchcase(cell_id, self.cell)

    def concerns(self, test_names: Iterable[str]) -> bool:
        """Whether it is about a test of these names; one that is not asked can neither need nor outlive it."""
        test = self.test
        return test is None or any(fnmatch.fnmatchcase(name, test) for name in test_names)


@dataclass(frozen=True)
class Cell:
    """One launch configuration of a matrix.

    ``arguments`` are neutral knobs (SGLang's ``ServerArgs`` names, e.g. ``mem_fraction_static``), never flags:
    :mod:`mtpgate.matrix.flags` spells them for the SGLang that will be launched.
    """

    id: str
    arguments: Mapping[str, ArgumentValue]
    environment: Mapping[str, str] = field(default_factory=dict)
    speculation: Speculation | None = None
    gpus: int = 0
    """GPUs that the launch occupies; 0 on the CPU."""
    is_reference: bool = False
    accept_length_floor: float | None = None
    """The smallest accept length (tokens a verify step, bonus included) that the matrix accepts."""
    waivers: tuple[Waiver, ...] = ()

    def waivers_for(self, check: str) -> tuple[Waiver, ...]:
        """The waivers of a check: one excuses one failure, and a check may have several."""
        return tuple(waiver for waiver in self.waivers if waiver.covers(self.id, check))


@dataclass(frozen=True)
class PrunedCell:
    """A point of the axes that is not launched: SGLang would refuse it, or run it as another cell."""

    id: str
    reason: str
    same_launch_as: str | None = None


@dataclass(frozen=True)
class Expansion:
    """All that a matrix came to. ``cells`` starts with the reference cell."""

    cells: tuple[Cell, ...]
    pruned: tuple[PrunedCell, ...]

    @property
    def reference(self) -> Cell:
        return next(cell for cell in self.cells if cell.is_reference)
