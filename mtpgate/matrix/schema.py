"""What a matrix file may say: pydantic models, one key of the file each. Unknown keys are refused.

The models check what can be seen key by key; what needs all cells at once (ids, the reference) is checked where
the cells are made, in :mod:`mtpgate.matrix.expand`.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, PlainValidator, Tag, model_validator
from pydantic_core import PydanticCustomError

from mtpgate.matrix.cell import ArgumentValue, Workload
from mtpgate.matrix.vocabulary import Phase
from mtpgate.matrix.yamlfile import did_you_mean

LAUNCHER_ARGUMENTS = {
    "host": "the launcher chooses it",
    "port": "the launcher takes a free one",
    "model_path": "write it as model.path",
    "revision": "write it as model.revision",
    "trust_remote_code": "write it as model.trust_remote_code",
}
"""Arguments of SGLang that a matrix may not set, and what to do instead."""

SPECULATION_ARGUMENTS = {
    "algorithm": "speculative_algorithm",
    "num_steps": "speculative_num_steps",
    "eagle_topk": "speculative_eagle_topk",
    "num_draft_tokens": "speculative_num_draft_tokens",
}
"""The short names of a ``speculation`` point and the ServerArgs names that they stand for."""


def faults(found: list[tuple[tuple[str | int, ...], str]]) -> PydanticCustomError:
    """One pydantic error that carries several faults, each with its key below the model that raises it."""
    return PydanticCustomError("faults", "several faults", {"faults": found})


def _argument(value: Any) -> ArgumentValue | None:
    if isinstance(value, dict | list):
        raise ValueError(
            f"expected a word, a number or true/false, found {'a list' if isinstance(value, list) else 'a mapping'}"
        )
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ValueError(
        f"expected a word, a finite number or true/false, found {value!s}; put it in quotes if it is a word"
    )


def _set_argument(value: Any) -> ArgumentValue:
    result = _argument(value)
    if result is None:
        raise ValueError("has no value; leave the key out to use SGLang's default")
    return result


def name_fault(name: str) -> str | None:
    """Why ``name`` cannot be a ServerArgs name that a matrix sets; None if it can."""
    if name in LAUNCHER_ARGUMENTS:
        return f"not an argument of a cell: {LAUNCHER_ARGUMENTS[name]}"
    neutral = name.lstrip("-").replace("-", "_")
    if neutral != name and re.fullmatch(r"[a-z]\w*", neutral):
        return f"spelled as a flag; write the ServerArgs name {neutral}"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return "not a ServerArgs name (lower case letters, digits and _)"
    return None


def _argument_name(name: str) -> str:
    if fault := name_fault(name):
        raise ValueError(fault)
    return name


def _matrix_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise ValueError(f"expected lower case letters, digits and . _ - (it names files), found {name!r}")
    return name


def _phase(name: str) -> str:
    if name not in get_args(Phase):
        raise ValueError(f"unknown phase{did_you_mean(name, list(get_args(Phase)))}")
    return name


def _variable_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("not the name of an environment variable")
    return name


def _variable(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("expected text or a number; put other values in quotes")
    return str(value)


def _shape(value: Any) -> str:
    return "mapping" if isinstance(value, dict) else "scalar"


Argument = Annotated[ArgumentValue, PlainValidator(_set_argument)]
ArgumentOrNull = Annotated[ArgumentValue | None, PlainValidator(_argument)]
ArgumentName = Annotated[str, AfterValidator(_argument_name)]
Environment = dict[Annotated[str, AfterValidator(_variable_name)], Annotated[str, PlainValidator(_variable)]]
Name = Annotated[str, AfterValidator(_matrix_name)]
Count = Annotated[int, Field(strict=True, ge=1)]
AcceptLength = Annotated[float, Field(strict=True, ge=1.0, allow_inf_nan=False)]
PhaseName = Annotated[str, AfterValidator(_phase)]
Seconds = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
GiB = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class FileModel(BaseModel):
    """Base of all: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Hardware(FileModel):
    """The machine that a matrix is for."""

    kind: Literal["cpu", "cuda"]
    gpu: tuple[str, ...] = ()
    """Shell-style patterns over GPU names as NVML reports them; any may match."""
    memory_gib: GiB | None = None
    """Memory of one GPU as PyTorch sees it, GiB. NVML reports a little more: see ``select.check_hardware``."""
    count: Annotated[int, Field(strict=True, ge=0)] = 0
    """GPUs that the machine must have at least."""

    @model_validator(mode="before")
    @classmethod
    def _one_or_several_names(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("gpu"), str):
            return {**data, "gpu": [data["gpu"]]}
        return data

    @model_validator(mode="after")
    def _gpus_only_with_cuda(self) -> Hardware:
        if self.kind == "cpu" and (self.gpu or self.memory_gib or self.count):
            raise ValueError("kind cpu has no gpu, memory_gib or count")
        if self.kind == "cuda" and not (self.gpu and self.count):
            raise ValueError("kind cuda needs gpu (a name pattern as NVML reports names) and count (1 or more)")
        return self


class ModelSource(FileModel):
    """The model under test."""

    path: Annotated[str, Field(min_length=1)]
    """A directory, a Hugging Face name, or ``builtin:small-mtp``."""
    revision: str | None = None
    trust_remote_code: Annotated[bool, Field(strict=True)] = False
    architecture: str | None = None
    """``architectures[0]`` of the model's config.json; SGLang's rules of that architecture are applied."""


class SpeculationPoint(FileModel):
    """One way to speculate; numbers that are left out are chosen by SGLang."""

    algorithm: Annotated[str, Field(min_length=1)] = "EAGLE"
    num_steps: Count | None = None
    eagle_topk: Count | None = None
    num_draft_tokens: Count | None = None

    def arguments(self) -> dict[str, ArgumentValue | None]:
        return {SPECULATION_ARGUMENTS[name]: value for name, value in self.model_dump().items()}


PointMapping = dict[ArgumentName, ArgumentOrNull]
AxisPoint = Annotated[
    Annotated[PointMapping, Tag("mapping")] | Annotated[ArgumentOrNull, Tag("scalar")], Discriminator(_shape)
]


def _not_empty(points: tuple[Any, ...]) -> tuple[Any, ...]:
    if not points:
        raise ValueError("an empty axis has no cells; give it a point or leave it out")
    return points


def _some_load(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    if not rows:
        raise ValueError("no workload; throughput needs at least one")
    return rows


def _no_repeats(points: tuple[Any, ...]) -> tuple[Any, ...]:
    for index, point in enumerate(points):
        if point in points[:index] and type(point) is type(points[points.index(point)]):
            raise faults([((index,), f"the same point as [{points.index(point)}]")])
    return points


Points = Annotated[tuple[AxisPoint, ...], AfterValidator(_not_empty), AfterValidator(_no_repeats)]
SpeculationPoints = Annotated[
    tuple[SpeculationPoint | None, ...], AfterValidator(_not_empty), AfterValidator(_no_repeats)
]


class Axes(BaseModel):
    """What varies. Cells are all combinations of one point of each axis.

    ``speculation`` is known; every other key is a ServerArgs name with scalar points, or any name with points that
    are mappings of several ServerArgs names.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Points] = Field(init=False)
    speculation: SpeculationPoints | None = None

    @property
    def others(self) -> dict[str, tuple[Any, ...]]:
        return dict(self.__pydantic_extra__ or {})


def _pattern(value: Any) -> Any:
    if not isinstance(value, list):
        return _argument(value)
    if not value:
        raise ValueError("an empty list matches nothing")
    return tuple(_argument(item) for item in value)


PatternValue = Annotated[Any, PlainValidator(_pattern)]


class SpeculationPattern(FileModel):
    """A pattern over the speculative settings; a key that is left out matches anything."""

    algorithm: PatternValue = "*"
    num_steps: PatternValue = "*"
    eagle_topk: PatternValue = "*"
    num_draft_tokens: PatternValue = "*"

    def arguments(self) -> dict[str, Any]:
        named = {SPECULATION_ARGUMENTS[name]: getattr(self, name) for name in self.model_fields_set}
        return {"speculative_algorithm": "*", **named}


class When(BaseModel):
    """A pattern over a cell's arguments: all its keys must match (see :mod:`mtpgate.matrix.matching`)."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, PatternValue] = Field(init=False)
    speculation: SpeculationPattern | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> When:
        if not self.model_fields_set:
            raise ValueError("an empty pattern matches every cell; name at least one argument")
        return self

    def patterns(self) -> dict[str, Any]:
        """The pattern of each ServerArgs name; None means unset."""
        result: dict[str, Any] = {}
        if "speculation" in self.model_fields_set:
            result = {"speculative_algorithm": None} if self.speculation is None else self.speculation.arguments()
        return result | dict(self.__pydantic_extra__ or {})


class Condition(FileModel):
    """When a cell matches, it gets these arguments (null: unset), variables and floor as well."""

    when: When
    arguments: PointMapping = {}
    environment: Environment = {}
    accept_length_floor: AcceptLength | None = None


class Exclude(FileModel):
    """Cells that are not launched, and why."""

    when: When
    reason: Annotated[str, Field(min_length=1)]


class Include(BaseModel):
    """One more cell: the base arguments with these."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, ArgumentOrNull] = Field(init=False)
    speculation: SpeculationPoint | None = None

    def arguments(self) -> dict[str, ArgumentValue | None]:
        speculative = self.speculation.arguments() if self.speculation else {}
        return {**speculative, **(self.__pydantic_extra__ or {})}


class WorkloadRow(FileModel):
    """One load; the same keys as :class:`mtpgate.matrix.cell.Workload`."""

    concurrency: Count
    input_tokens: Count
    output_tokens: Count
    requests: Count
    repeats: Count = 3

    @model_validator(mode="after")
    def _all_clients_work(self) -> WorkloadRow:
        if self.requests < self.concurrency:
            message = f"{self.requests} requests keep {self.concurrency} clients never all busy; use at least that many"
            raise faults([(("requests",), message)])
        return self


Reference = Annotated[Annotated[str, Tag("scalar")] | Annotated[When, Tag("mapping")], Discriminator(_shape)]


class Matrix(FileModel):
    """One matrix file: a model, the hardware it is for, and the launches to try."""

    name: Name
    about: str = ""
    hardware: Hardware
    engine: Literal["embedded", "sglang"]
    """``embedded``: the SGLang on the CPU that this project brings; ``sglang``: the one under test."""
    model: ModelSource
    arguments: dict[ArgumentName, Argument] = {}
    environment: Environment = {}
    axes: Axes = Axes()
    conditions: tuple[Condition, ...] = ()
    exclude: tuple[Exclude, ...] = ()
    include: tuple[Include, ...] = ()
    reference: Reference | None = None
    """The cell that the others' answers are compared with; by default the first one without speculation."""
    workload_rows: Annotated[tuple[WorkloadRow, ...], AfterValidator(_some_load), Field(alias="workloads")]
    accept_length_floor: AcceptLength | None = None
    """Tokens a verify step, bonus included; every speculative cell must reach it."""
    minimum_effect: Annotated[float, Field(strict=True, gt=0, lt=1)] = 0.03
    """The smallest drop of tokens/s, as a ratio, that is worth an alarm on this hardware."""
    deadlines: dict[PhaseName, Seconds] = {}
    """Seconds that a phase of start-up may take at most, for phases that differ from the launcher's defaults."""

    @property
    def workloads(self) -> tuple[Workload, ...]:
        return tuple(Workload(**row.model_dump()) for row in self.workload_rows)

    @model_validator(mode="after")
    def _whole(self) -> Matrix:
        found: list[tuple[tuple[str | int, ...], str]] = []
        seen: dict[int, int] = {}
        for index, row in enumerate(self.workload_rows):
            if row.concurrency in seen:
                first = seen[row.concurrency]
                found.append(
                    (
                        ("workloads", index, "concurrency"),
                        f"the same as in workloads[{first}]: both are C{row.concurrency}",
                    )
                )
            seen.setdefault(row.concurrency, index)
        if self.engine == "embedded" and self.hardware.kind != "cpu":
            found.append((("engine",), "the embedded engine runs on hardware.kind cpu only"))
        if found:
            raise faults(found)
        return self


def name_faults(data: Any) -> list[tuple[tuple[str | int, ...], str]]:
    """Names that are no ServerArgs names, in the places of a file's raw data where any such name may be a key.

    The models leave these keys open (``axes``, ``when``, ``include``, a ``reference`` pattern).
    """
    if not isinstance(data, dict):
        return []
    places: list[tuple[tuple[str | int, ...], Any]] = [(("reference",), data.get("reference"))]
    axes = data.get("axes")
    if isinstance(axes, dict):
        # An axis whose points are mappings has a name of its own, not an argument's.
        plain = {name: points for name, points in axes.items() if not _all_mappings(points)}
        places.append((("axes",), plain))
    for section, inner in (("conditions", "when"), ("exclude", "when"), ("include", None)):
        rows = data.get(section)
        for index, row in enumerate(rows if isinstance(rows, list) else []):
            if isinstance(row, dict):
                key = (section, index) if inner is None else (section, index, inner)
                places.append((key, row if inner is None else row.get(inner)))
    return [
        ((*key, name), fault)
        for key, mapping in places
        if isinstance(mapping, dict)
        for name in mapping
        if name != "speculation" and (fault := name_fault(name))
    ]


def _all_mappings(points: Any) -> bool:
    return isinstance(points, list) and all(isinstance(point, dict) for point in points)
