"""What is watched around a cell's server, and what it should be able to do."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures import conditions
from fixtures.conditions import Surroundings
from mtpgate.gpu.watch import GpuSample
from mtpgate.load.canary import CanaryRun
from mtpgate.load.disturbance import Asked
from mtpgate.matrix.cell import Cell, Speculation, Workload

C16 = Workload(16, 32, 32, 16)
EAGLE = Speculation("EAGLE", 1, 1, 2)


def server(tmp_path: Path, **info: object) -> Any:
    environment = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "OTHER": "1"}
    return SimpleNamespace(
        server_info=info,
        spec=SimpleNamespace(environment=environment),
        pids=lambda: frozenset({1}),
        log_path=tmp_path / "server.log",
    )


def around(cell: Cell, *, canary: bool = True, python: Path | None = None) -> Surroundings:
    request = SimpleNamespace(sglang_python=python)
    return Surroundings(
        cell, SimpleNamespace(environment={"PATH": "/bin"}, plan=SimpleNamespace(request=request)), canary
    )


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How canaries are run, instead of being run; NVML shows two GPUs."""
    ran: list[dict[str, Any]] = []

    class Nvml:
        def __init__(self, uuids: list[str]) -> None:
            self.uuids = uuids

        def __enter__(self) -> Nvml:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def look(self) -> tuple[GpuSample, ...]:
            return tuple(GpuSample(number) for number in range(len(self.uuids)))

    def run(python: Path, **more: Any) -> CanaryRun:
        ran.append({"python": python, **more})
        return CanaryRun({"CPU": {"copy_gib_s": 1.0}})

    monkeypatch.setattr(conditions, "GpuWatch", Nvml)
    monkeypatch.setattr(conditions, "run_canary", run)
    return ran


def test_the_gpus_of_the_lease_are_watched_and_their_canary_runs_where_sglang_is(tmp_path, canaries) -> None:
    surroundings = around(Cell("nomtp", {}, gpus=2), python=Path("/opt/sglang/bin/python"))
    with surroundings.watch(server(tmp_path)) as watch:
        pass
    assert len(watch.conditions.gpus[0]) == 2
    assert [call["python"] for call in canaries] == [Path("/opt/sglang/bin/python")] * 2
    assert canaries[0]["environment"] == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert len(canaries[0]["gpus"]) == 2


def test_on_a_cpu_the_canary_runs_in_the_suites_own_python(tmp_path, canaries) -> None:
    with around(Cell("nomtp", {})).watch(server(tmp_path)) as watch:
        pass
    assert watch.conditions.gpus == ()
    assert canaries == [{"python": Path(sys.executable)}] * 2


def test_without_a_canary_the_rest_is_watched(tmp_path, canaries) -> None:
    with around(Cell("nomtp", {}), canary=False).watch(server(tmp_path)) as watch:
        pass
    assert canaries == []
    assert watch.conditions.host


@pytest.mark.parametrize("name", ["cuda_graph_max_bs", "cuda_graph_max_bs_decode"])
def test_what_the_server_can_do_is_what_it_says(tmp_path, name: str) -> None:
    info = {name: 8, "max_running_requests": 48, "device": "cuda"}
    asked = around(Cell("e", {}, gpus=2, speculation=EAGLE)).asked(server(tmp_path, **info), C16)
    assert asked == Asked(16, on_gpu=True, has_graphs=True, graph_max_bs=8, max_running_requests=48)


def test_a_cpu_has_graphs_only_with_torch_compile(tmp_path) -> None:
    plain = {"device": "cpu", "torch_compile_max_bs": 16, "max_running_requests": 16}
    assert not around(Cell("n", {})).asked(server(tmp_path, **plain), C16).has_graphs
    compiled = around(Cell("n", {})).asked(server(tmp_path, **plain, enable_torch_compile=True), C16)
    assert compiled == Asked(16, has_graphs=True, graph_max_bs=16, max_running_requests=16)
