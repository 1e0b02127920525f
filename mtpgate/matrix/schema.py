"""What a matrix file may say: pydantic models, one key of the file each. Unknown keys are refused.

The models check what can be seen key by key; what needs all cells at once (ids, the reference) is checked where
the cells are made, in :mod:`mtpgate.matrix.expand`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from mtpgate.matrix.cell import ArgumentValue, Workload
from mtpgate.matrix.patterns import When
from mtpgate.matrix.values import (
    SPECULATION_ARGUMENTS,
    AcceptLength,
    Argument,
    ArgumentName,
    ArgumentOrNull,
    Count,
    Environment,
    FileModel,
    GiB,
    Name,
    PhaseName,
    Seconds,
    faults,
)


def _shape(value: Any) -> str:
    return "mapping" if isinstance(value, dict) else "scalar"


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


class Condition(FileModel):
    """When a cell matches, it gets these arguments (null: unset), variables and floor as well."""

    when: When
    arguments: PointMapping = Field(default_factory=dict)
    environment: Environment = Field(default_factory=dict)
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
    api: Literal["generate", "completions"] = "generate"

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
    arguments: dict[ArgumentName, Argument] = Field(default_factory=dict)
    environment: Environment = Field(default_factory=dict)
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
    deadlines: dict[PhaseName, Seconds] = Field(default_factory=dict)
    """Seconds that a phase of start-up may take at most, for phases that differ from the launcher's defaults."""
    silence: dict[PhaseName, Seconds] = Field(default_factory=dict)
    """Seconds that a phase may pass without output or another sign of life, likewise."""

    @property
    def workloads(self) -> tuple[Workload, ...]:
        return tuple(Workload(**row.model_dump()) for row in self.workload_rows)

    @model_validator(mode="after")
    def _whole(self) -> Matrix:
        found: list[tuple[tuple[str | int, ...], str]] = []
        seen: dict[str, int] = {}
        for index, workload in enumerate(self.workloads):
            if workload.name in seen:
                message = f"the same as in workloads[{seen[workload.name]}]: both are {workload.name}"
                found.append((("workloads", index, "concurrency"), message))
            seen.setdefault(workload.name, index)
        if self.engine == "embedded" and self.hardware.kind != "cpu":
            found.append((("engine",), "the embedded engine runs on hardware.kind cpu only"))
        for phase, seconds in self.silence.items():
            total = self.deadlines.get(phase, seconds)
            if seconds > total:
                message = f"{seconds:g} s are never reached: deadlines.{phase} ends the phase after {total:g} s"
                found.append((("silence", phase), message))
        if found:
            raise faults(found)
        return self
