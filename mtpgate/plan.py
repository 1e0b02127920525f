"""From a request (matrix, cells, GPUs, which SGLang) to launches, with every mistake found before anything starts.

:func:`make_plan` reads files and asks NVML; :func:`prepare` asks the SGLang under test for its flags (a few seconds,
kept on disk), makes the small model if the matrix wants it, and spells every cell's command line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mtpgate.engine.environment import ENGINE_ARGUMENTS, engine_environment, engine_missing
from mtpgate.engine.fault import parse_fault
from mtpgate.engine.model import ensure_model
from mtpgate.engine.model_recipe import DEFAULT
from mtpgate.errors import UsageError
from mtpgate.gpu.inventory import Gpu, Inventory, read_inventory
from mtpgate.gpu.leases import CPU
from mtpgate.matrix.cell import ArgumentValue, Cell, Expansion, PrunedCell, Waiver
from mtpgate.matrix.expand import expand
from mtpgate.matrix.flags import flags_for
from mtpgate.matrix.load import load_matrix
from mtpgate.matrix.probe import SGLangFacts, probe_flags, python_command
from mtpgate.matrix.schema import Matrix
from mtpgate.matrix.select import check_hardware, default_matrix, select_cells
from mtpgate.matrix.waivers import load_waivers
from mtpgate.server.command import LaunchSpec, build_command
from mtpgate.server.deadlines import CPU_SECONDS, CPU_SILENCE_SECONDS, Deadlines

SMALL_MODEL = "builtin:small-mtp"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Request:
    """What a person asked for; None is "as the matrix or the machine has it"."""

    root: Path
    """The project's folder: ``matrices/`` and ``.cache/`` are below it."""
    matrix: Path | None = None
    cells: tuple[str, ...] = ()
    gpus: int | None = None
    sglang_python: Path | None = None
    server_command: tuple[str, ...] | None = None
    model: str | None = None
    fault: str | None = None
    known_bad: Path | None = None


@dataclass(frozen=True)
class Plan:
    """Which cells of which matrix this machine will launch. The reference is the first of ``cells``."""

    request: Request
    path: Path
    matrix: Matrix
    cells: tuple[Cell, ...]
    selected: frozenset[str]
    """Ids that were asked for; the reference may be among ``cells`` only because parity compares with it."""
    pruned: tuple[PrunedCell, ...]
    inventory: Inventory
    gpus: tuple[Gpu, ...]
    """What launches may take: the first ``--gpus`` of the visible ones."""

    @property
    def reference(self) -> Cell:
        return next(cell for cell in self.cells if cell.is_reference)

    @property
    def hardware(self) -> str:
        """The machine in words, for the report and the baseline key."""
        if self.matrix.hardware.kind == "cpu":
            return f"CPU, {len(os.sched_getaffinity(0))} cores, {_cpu_name()}"
        names = sorted({gpu.name for gpu in self.gpus})
        return f"{len(self.gpus)} x {' / '.join(names)}, {self.gpus[0].total_gib:.2f} GiB"


def make_plan(request: Request, *, inventory: Inventory | None = None) -> Plan:
    """Choose the matrix, expand it, select the cells. Raises UsageError for everything that cannot be done here."""
    found = read_inventory() if inventory is None else inventory
    folder = request.root / "matrices"
    path = request.matrix or _default(folder, found, request)
    matrix = load_matrix(path)
    check_hardware(matrix, found, request.gpus)
    if request.fault is not None:
        parse_fault(request.fault)
        if matrix.engine != "embedded":
            raise UsageError(f"--fault breaks the embedded CPU engine only; {path} runs engine {matrix.engine}")
    expansion: Expansion = expand(matrix, _waivers(request))
    selected = select_cells(expansion, request.cells)
    ids = frozenset(cell.id for cell in selected)
    cells = tuple(cell for cell in expansion.cells if cell.id in ids or cell.is_reference)
    usable = found.gpus if request.gpus is None else found.gpus[: request.gpus]
    gpus = () if matrix.hardware.kind == "cpu" else tuple(usable)
    for cell in cells:
        if cell.gpus > len(gpus):
            raise UsageError(
                f"cell {cell.id} needs {cell.gpus} GPUs, {len(gpus)} are to be used: raise --gpus, or leave the cell "
                "out with --cell"
            )
    return Plan(request, path, matrix, cells, ids, expansion.pruned, found, gpus)


def _waivers(request: Request) -> tuple[Waiver, ...]:
    if request.known_bad is not None:
        return load_waivers(request.known_bad)
    kept = request.root / "matrices" / "known_bad.yaml"
    return load_waivers(kept) if kept.exists() else ()


def _default(folder: Path, inventory: Inventory, request: Request) -> Path:
    """The matrix for this machine. ``--gpus`` where there is no GPU is a mistake that the CPU matrix would hide."""
    if request.gpus and not inventory.gpus:
        why = f" ({inventory.why_none})" if inventory.why_none else ""
        raise UsageError(
            f"--gpus {request.gpus}: this machine has no usable GPU{why}. Without --gpus the CPU matrix runs here."
        )
    return default_matrix(inventory, folder)


@dataclass(frozen=True)
class Prepared:
    """A plan whose command lines are spelled for the SGLang that will be launched."""

    plan: Plan
    facts: SGLangFacts
    model_path: str
    environment: Mapping[str, str]
    arguments: Mapping[str, Mapping[str, ArgumentValue]]
    """By cell id: all neutral knobs of the launch, the engine's own included."""

    @property
    def model_identity(self) -> str:
        """What must be equal for two figures to be of the same model: its name and revision, or the recipe's digest."""
        model = self.plan.matrix.model
        name = self.plan.request.model or model.path
        if name == SMALL_MODEL:
            return f"{name} {DEFAULT.digest[:12]}"
        return f"{name} {model.revision}" if model.revision else name

    @property
    def lease_candidates(self) -> tuple[str, ...]:
        """What a launch leases from: GPU UUIDs, or the CPU."""
        return tuple(gpu.uuid for gpu in self.plan.gpus) or (CPU,)

    def launch_spec(
        self, cell: Cell, *, port: int, log_path: Path, gpu_ids: tuple[str, ...] = (), pass_fds: tuple[int, ...] = ()
    ) -> LaunchSpec:
        """The launch of ``cell`` on the leased GPUs (UUIDs; empty on the CPU)."""
        matrix, arguments = self.plan.matrix, self.arguments[cell.id]
        environment = {**self.environment, **matrix.environment, **cell.environment}
        if gpu_ids:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_ids)
        flags = flags_for(arguments, self.facts.known_flags, self.facts.version)
        if matrix.model.trust_remote_code:
            flags.append("--trust-remote-code")
        if matrix.model.revision:
            flags += ["--revision", matrix.model.revision]
        on_cpu = matrix.hardware.kind == "cpu"
        usual: Mapping[str, float] = CPU_SECONDS if on_cpu else {}
        usual_silence: Mapping[str, float] = CPU_SILENCE_SECONDS if on_cpu else {}
        container = self.plan.request.server_command is not None
        return LaunchSpec(
            cell_id=cell.id,
            command=build_command(self.facts.entry, flags, model_path=self.model_path, host=LOOPBACK, port=port),
            port=port,
            log_path=log_path,
            host=LOOPBACK,
            environment=environment,
            deadlines=Deadlines.with_overrides({**usual, **matrix.deadlines}, {**usual_silence, **matrix.silence}),
            speculative=cell.speculation is not None,
            owns_port="log" if container else "process",
            arguments=arguments,
            context=self._context(cell),
            pass_fds=pass_fds,
        )

    def _context(self, cell: Cell) -> Mapping[str, object]:
        speculation = cell.speculation
        return {
            "tp": cell.arguments.get("tp_size", 1),
            "mem_fraction_static": cell.arguments.get("mem_fraction_static"),
            "cuda_graph_max_bs": cell.arguments.get("cuda_graph_max_bs"),
            "speculative": speculation
            and {
                "num_steps": speculation.num_steps,
                "topk": speculation.eagle_topk,
                "num_draft_tokens": speculation.num_draft_tokens,
            },
            "workloads": [
                {
                    "concurrency": load.concurrency,
                    "input_tokens": load.input_tokens,
                    "output_tokens": load.output_tokens,
                }
                for load in self.plan.matrix.workloads
            ],
            "gpu_total_gib": self.plan.gpus[0].total_gib if self.plan.gpus else None,
        }


def prepare(plan: Plan, *, on_progress: Callable[[str], None] = lambda _: None) -> Prepared:
    """Everything that a launch needs and that can be wrong. Raises UsageError; nothing has been started then."""
    request, matrix = plan.request, plan.matrix
    python = request.sglang_python or Path(sys.executable)
    embedded = matrix.engine == "embedded"
    if embedded:
        if request.server_command is not None:
            raise UsageError(f"--server-command: {plan.path} runs the embedded CPU engine, which is started by Python")
        if missing := engine_missing(python):
            raise UsageError(missing)
        fault = None if request.fault is None else parse_fault(request.fault)
        environment = engine_environment(os.environ, fault=fault)
    else:
        environment = dict(os.environ)
    on_progress("asking the SGLang under test for its version and flags")
    facts = probe_flags(
        request.server_command or python_command(str(python)), environment, cache=request.root / ".cache" / "mtpgate"
    )
    own: Mapping[str, ArgumentValue] = ENGINE_ARGUMENTS if embedded else {}
    arguments = {cell.id: {**own, **cell.arguments} for cell in plan.cells}
    prepared = Prepared(plan, facts, _model(plan), environment, arguments)
    faults: dict[str, list[str]] = {}
    for cell in plan.cells:
        try:
            # The port and the log are stand-ins: only what the matrix says is tried here.
            prepared.launch_spec(cell, port=1, log_path=Path(os.devnull))
        except UsageError as error:
            faults.setdefault(str(error), []).append(cell.id)
    if faults:
        raise UsageError("\n".join(f"{plan.path}: {text} (cells: {_few(ids)})" for text, ids in faults.items()))
    if _is_small(plan):
        on_progress("making the small MTP model, if it is not there")
        ensure_model(Path(prepared.model_path))
    return prepared


def _few(ids: list[str], most: int = 3) -> str:
    return ", ".join(ids[:most]) + (f" and {len(ids) - most} more" if len(ids) > most else "")


def _is_small(plan: Plan) -> bool:
    return (plan.request.model or plan.matrix.model.path) == SMALL_MODEL


def _model(plan: Plan) -> str:
    if _is_small(plan):
        return str(plan.request.root / ".cache" / "mtpgate" / "model")
    path = plan.request.model or plan.matrix.model.path
    folder = Path(path).expanduser()
    looks_local = path.startswith((".", "/", "~")) or folder.exists()
    if looks_local and not (folder / "config.json").is_file():
        origin = "--model" if plan.request.model else f"model.path in {plan.path}"
        raise UsageError(
            f"{origin}: {path}: no model there (no config.json); name a model's folder, or its name on a hub"
        )
    return str(folder) if looks_local else path


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown model"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown model")
