"""From a matrix to its cells: every combination of the axes, and every included cell, becomes a cell or a pruned one.

The way of a point: base arguments, the axes' points, the conditions that match (in the order of the file, each seeing
what the ones before set), excludes, then SGLang's rewritings and refusals (:mod:`mtpgate.matrix.rules`). A point that
SGLang would run as something else is launched under the id of what really runs, once; its own id is listed as pruned.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mtpgate.errors import UsageError
from mtpgate.matrix import rules
from mtpgate.matrix.cell import ArgumentValue, Cell, Expansion, PrunedCell, Speculation, Waiver
from mtpgate.matrix.ids import cell_id
from mtpgate.matrix.matching import matches
from mtpgate.matrix.patterns import When
from mtpgate.matrix.schema import Matrix, SpeculationPoint

Fault = tuple[tuple[str | int, ...], str]
"""A key of the matrix and what is wrong with it."""


def expand(matrix: Matrix, waivers: Iterable[Waiver] = ()) -> Expansion:
    """All cells, the reference first and then in the order of the file, with the waivers that cover them.

    Raises UsageError with every fault (a reference that is not one cell, ids that collide, no cell at all, ...).
    """
    expansion, faults = try_expand(matrix, waivers)
    if faults or expansion is None:
        lines = [f"matrix {matrix.name}: {'.'.join(str(part) for part in key)}: {text}" for key, text in faults]
        raise UsageError("\n".join(lines))
    return expansion


def try_expand(matrix: Matrix, waivers: Iterable[Waiver] = ()) -> tuple[Expansion | None, list[Fault]]:
    """Like :func:`expand`, with the faults as values; no expansion if there are any."""
    work = _Work(matrix)
    for point in _points(matrix):
        work.add(point)
    faults = work.faults + _unused(matrix, work) + _taken_twice(work)
    reference, fault = _reference(matrix, work)
    if fault:
        faults.append(fault)
    if faults or reference is None:
        return None, faults
    known = [waiver for waiver in waivers if waiver.applies_to(matrix.name)]
    cells = [replace(cell, is_reference=cell.id == reference.id, waivers=_covering(cell, known)) for cell in work.cells]
    return Expansion(tuple(sorted(cells, key=lambda cell: not cell.is_reference)), tuple(work.pruned)), []


def _covering(cell: Cell, waivers: Iterable[Waiver]) -> tuple[Waiver, ...]:
    return tuple(waiver for waiver in waivers if waiver.covers(cell.id, waiver.check))


@dataclass(frozen=True)
class _Point:
    """Arguments of one combination of the axes or of one included cell; None is unset."""

    arguments: Mapping[str, ArgumentValue | None]
    key: tuple[str | int, ...]
    """Where the point comes from in the file."""


def _points(matrix: Matrix) -> list[_Point]:
    axes: list[list[dict[str, ArgumentValue | None]]] = []
    if matrix.axes.speculation is not None:
        axes.append([_speculation(point) for point in matrix.axes.speculation])
    axes += [
        [dict(point) if isinstance(point, dict) else {name: point} for point in points]
        for name, points in matrix.axes.others.items()
    ]
    base = dict(matrix.arguments)
    product = [
        _Point({**base, **{name: value for part in parts for name, value in part.items()}}, ("axes",))
        for parts in itertools.product(*axes)
    ]
    included = [_Point({**base, **cell.arguments()}, ("include", i)) for i, cell in enumerate(matrix.include)]
    return product + included


def _speculation(point: SpeculationPoint | None) -> dict[str, ArgumentValue | None]:
    return {"speculative_algorithm": None} if point is None else point.arguments()


def _axis_names(matrix: Matrix) -> list[str]:
    """The arguments that have more than one value over the axes, in the order of the file."""
    values: dict[str, set[str]] = {}
    for axis, points in matrix.axes.others.items():
        mappings = [point if isinstance(point, dict) else {axis: point} for point in points]
        for name in dict.fromkeys(name for mapping in mappings for name in mapping):
            found = {repr(mapping.get(name, matrix.arguments.get(name))) for mapping in mappings}
            values.setdefault(name, set()).update(found)
    return [name for name, found in values.items() if len(found) > 1]


@dataclass
class _Work:
    """What the points came to so far."""

    matrix: Matrix
    cells: list[Cell] = field(default_factory=list)
    pruned: list[PrunedCell] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    used: set[tuple[str, int]] = field(default_factory=set)
    """The conditions and excludes that matched a point."""
    ids: dict[tuple[Any, ...], str] = field(default_factory=dict)
    """The id of each launch."""
    launches: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """The launch of each id."""

    def __post_init__(self) -> None:
        matrix = self.matrix
        self.axis_names = _axis_names(matrix)
        concurrency = max(workload.concurrency for workload in matrix.workloads)
        self.setting = rules.Setting(matrix.engine, matrix.model.architecture, concurrency)

    def add(self, point: _Point) -> None:
        asked = {name: value for name, value in point.arguments.items() if value is not None}
        named = self._named(asked)
        requested, environment, floor = self._apply_conditions(asked)
        running, reasons = rules.rewrite(requested, self.setting)
        id_ = cell_id(running, named)
        own_id = cell_id(asked, named)
        if own_id != cell_id(requested, named):
            reasons.insert(0, "a condition of this matrix changes it")
        own_id = own_id if reasons else id_
        refused = self._excluded(requested, running) or rules.refusal(running, self.setting)
        if refused:
            self._prune(own_id, refused, None)
            return
        launch = (rules.launch_key(running, self.setting), tuple(sorted(environment.items())))
        first = self.ids.setdefault(launch, id_)
        if self.launches.setdefault(first, launch) != launch:
            text = f"two different launches would both be {first}; vary arguments that the id shows, or fewer at once"
            self.faults.append((point.key, text))
            return
        known = any(cell.id == first for cell in self.cells)
        if own_id != first:
            why = "; ".join(reasons) or "SGLang fills in the same values"
            self._prune(own_id, f"the same launch as {first}: {why}", first)
        elif known and point.key[0] == "include":
            self.faults.append((point.key, f"{own_id} is already a cell of this matrix"))
        if not known:
            self._append(_cell(first, running, environment, floor, self.matrix))

    def _named(self, arguments: Mapping[str, ArgumentValue]) -> list[str]:
        """Arguments for the id: those that the axes vary, and those that an included cell has beside the base."""
        base = self.matrix.arguments
        varied = [name for points in self.matrix.axes.others.items() for name in _names_of(*points)]
        return self.axis_names + [
            name for name, value in arguments.items() if name not in varied and base.get(name) != value
        ]

    def _append(self, cell: Cell) -> None:
        self.cells.append(cell)
        if cell.gpus > self.matrix.hardware.count:
            text = f"{cell.id} needs {cell.gpus} GPUs, more than hardware.count {self.matrix.hardware.count}"
            self.faults.append((("hardware", "count"), text))

    def _prune(self, id_: str, reason: str, same: str | None) -> None:
        """The same point may be reached twice, by a rewriting and by name; it is listed once."""
        if not any(pruned.id == id_ for pruned in self.pruned):
            self.pruned.append(PrunedCell(id_, reason, same))

    def _apply_conditions(
        self, arguments: dict[str, ArgumentValue]
    ) -> tuple[dict[str, ArgumentValue], dict[str, str], float | None]:
        environment, floor = dict(self.matrix.environment), self.matrix.accept_length_floor
        for index, condition in enumerate(self.matrix.conditions):
            if not matches(condition.when.patterns(), arguments):
                continue
            self.used.add(("conditions", index))
            merged = {**arguments, **condition.arguments}
            arguments = {name: value for name, value in merged.items() if value is not None}
            environment |= condition.environment
            floor = condition.accept_length_floor or floor
        return arguments, environment, floor

    def _excluded(self, *variants: Mapping[str, ArgumentValue]) -> str | None:
        """The reason of the first exclude that matches the point as asked or as it would run."""
        for index, exclude in enumerate(self.matrix.exclude):
            if any(matches(exclude.when.patterns(), arguments) for arguments in variants):
                self.used.add(("exclude", index))
                return f"excluded: {exclude.reason}"
        return None


def _names_of(axis: str, points: tuple[Any, ...]) -> set[str]:
    return {name for point in points for name in (point if isinstance(point, dict) else [axis])}


def _cell(
    id_: str, arguments: dict[str, ArgumentValue], environment: dict[str, str], floor: float | None, matrix: Matrix
) -> Cell:
    speculation = None
    if "speculative_algorithm" in arguments:
        numbers = [arguments[name] for name in rules.SPECULATIVE_NUMBERS]
        speculation = Speculation(str(arguments["speculative_algorithm"]), *(int(number) for number in numbers))
    return Cell(
        id=id_,
        arguments=arguments,
        environment=environment,
        speculation=speculation,
        gpus=0 if matrix.hardware.kind == "cpu" else gpus_of(arguments),
        accept_length_floor=floor if speculation else None,
    )


def gpus_of(arguments: Mapping[str, ArgumentValue]) -> int:
    """GPUs of one launch: tp * pp * dp, where attention DP runs inside the TP group.

    ``srt/server_args.py``, ``compute_world_size`` (SGLang 0.5.23).
    """
    sizes = {name: int(arguments.get(name, 1)) for name in ("tp_size", "pp_size", "dp_size")}
    inside = arguments.get("enable_dp_attention") is True
    return sizes["tp_size"] * sizes["pp_size"] * (1 if inside else sizes["dp_size"])


def _unused(matrix: Matrix, work: _Work) -> list[Fault]:
    """A condition or an exclude that matches nothing is a typing error waiting to cost a launch."""
    rows: list[tuple[str, int]] = [("conditions", i) for i in range(len(matrix.conditions))]
    rows += [("exclude", i) for i in range(len(matrix.exclude))]
    return [((*row, "when"), "matches no point of this matrix") for row in rows if row not in work.used]


def _taken_twice(work: _Work) -> list[Fault]:
    """A pruned point under the id of a cell would hide from a reader that it was something else."""
    cells = {cell.id for cell in work.cells}
    twice = [pruned.id for pruned in work.pruned if pruned.id in cells]
    return [
        (("axes",), f"a pruned point and a cell would both be {id_}; vary arguments that the id shows") for id_ in twice
    ]


def _reference(matrix: Matrix, work: _Work) -> tuple[Cell | None, Fault | None]:
    wanted = matrix.reference
    plain = [cell for cell in work.cells if cell.speculation is None]
    if wanted is None:
        why = "every cell speculates; the answers need a cell without speculation (speculation: null) to compare with"
        return (plain[0], None) if plain else (None, (("axes",), why))
    if isinstance(wanted, When):
        found = [cell for cell in work.cells if matches(wanted.patterns(), cell.arguments)]
    else:
        found = [cell for cell in work.cells if cell.id == wanted]
    if len(found) == 1 and found[0].speculation is None:
        return found[0], None
    return None, (("reference",), _reference_fault(wanted, found, plain, work.pruned))


def _reference_fault(wanted: str | When, found: list[Cell], plain: list[Cell], pruned: list[PrunedCell]) -> str:
    if len(found) > 1:
        return f"matches {len(found)} cells ({', '.join(cell.id for cell in found)}); it must be one"
    if found:
        return f"{found[0].id} speculates; the reference is what speculation is compared with"
    reason = next((item.reason for item in pruned if item.id == wanted), None)
    if reason:
        return f"{wanted} is not launched: {reason}"
    shown = wanted if isinstance(wanted, str) else "this pattern"
    return f"{shown} is no cell of this matrix; cells without speculation: {', '.join(c.id for c in plain) or 'none'}"
