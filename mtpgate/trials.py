"""Launches of one cell with other arguments than its own, under a lease that is held already: what a fit is made of."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mtpgate.gpu.leases import Lease
from mtpgate.matrix.cell import ArgumentValue, Cell
from mtpgate.plan import Prepared
from mtpgate.server.command import LaunchSpec
from mtpgate.server.diagnose import diagnose_file
from mtpgate.server.fit import Change, Trial
from mtpgate.server.launch import Progress, StartupFailure, launch
from mtpgate.server.ports import free_port

SAME_KNOB: Mapping[str, str] = {"cuda_graph_max_bs": "cuda_graph_max_bs_decode"}
"""Two ServerArgs names of one knob, by SGLang's version: the older, and the newer."""


def changed(arguments: Mapping[str, ArgumentValue], change: Change) -> dict[str, ArgumentValue]:
    """``arguments`` with ``change``, under the name of a knob that they have already."""
    result = dict(arguments)
    for name, value in change.items():
        newer = SAME_KNOB.get(name, name)
        result[newer if newer in result else name] = value
    return result


@contextlib.contextmanager
def temporary_folder(prepared: Prepared, spec: LaunchSpec) -> Iterator[LaunchSpec]:
    """``spec`` with a temporary folder of its own, removed afterwards, where that harms nothing.

    SGLang leaves its temporary folders behind. On a GPU host compilers keep their caches there, which must stay.
    """
    if prepared.plan.matrix.engine != "embedded":
        yield spec
        return
    with tempfile.TemporaryDirectory(prefix="mtpgate-", ignore_cleanup_errors=True) as folder:
        yield replace(spec, environment={**spec.environment, "TMPDIR": folder})


@dataclass(frozen=True)
class Trials:
    """Launches ``cell`` with a change, waits until it is ready or has failed, and stops it.

    ``log_path`` gives each launch a log of its own. Raises UsageError if SGLang has no flag for a change; what else
    :func:`mtpgate.server.launch.launch` raises ends the fit, and leaves no process.
    """

    prepared: Prepared
    cell: Cell
    leased: Lease
    log_path: Callable[[Change], Path]
    on_progress: Callable[[Progress], None] | None = None

    def __call__(self, change: Change) -> Trial:
        id_ = self.cell.id
        cell = replace(self.cell, arguments=changed(self.cell.arguments, change))
        arguments = {**self.prepared.arguments, id_: changed(self.prepared.arguments[id_], change)}
        spec = replace(self.prepared, arguments=arguments).launch_spec(
            cell,
            port=free_port(),
            log_path=self.log_path(change),
            gpu_ids=self.leased.resources if cell.gpus else (),
            pass_fds=self.leased.descriptors,
        )
        with temporary_folder(self.prepared, spec) as spec:
            try:
                server = launch(spec, on_progress=self.on_progress)
            except StartupFailure as failure:
                return Trial(False, failure.seconds, failure.diagnosis)
            with server:
                running = server.server_info.get("max_running_requests")
                return Trial(
                    True,
                    server.startup_seconds,
                    diagnose_file(spec.log_path, spec.context),
                    running if isinstance(running, int) else None,
                )
