"""Which matrix runs on a machine, and which of its cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpgate.errors import UsageError
from mtpgate.gpu.inventory import Gpu, Inventory
from mtpgate.matrix.cell import Cell, Expansion, PrunedCell
from mtpgate.matrix.load import load_matrix
from mtpgate.matrix.select import check_hardware, default_matrix, select_cells

MATRICES = Path(__file__).parents[3] / "matrices"
CELLS = Expansion(
    (Cell("nomtp", {}, is_reference=True), Cell("eagle-s1-k1-d2", {}), Cell("eagle-s3-k1-d4", {})),
    (PrunedCell("eagle-s3-k2-d6", "needs eagle_topk 1"),),
)
RTX = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
NO_GPU = Inventory(why_none="no NVML")


def machine(count: int, name: str = RTX, total_gib: float = 95.6) -> Inventory:
    return Inventory(tuple(Gpu(i, f"GPU-{i}", name, total_gib, total_gib) for i in range(count)), "580.1")


@pytest.mark.parametrize(
    ("patterns", "ids"),
    [
        ([], ["nomtp", "eagle-s1-k1-d2", "eagle-s3-k1-d4"]),
        (["nomtp"], ["nomtp"]),
        (["eagle-*"], ["eagle-s1-k1-d2", "eagle-s3-k1-d4"]),
        (["eagle-s3-*", "nomtp"], ["nomtp", "eagle-s3-k1-d4"]),
        (["*", "*"], ["nomtp", "eagle-s1-k1-d2", "eagle-s3-k1-d4"]),
    ],
)
def test_cells_are_selected_by_id_or_pattern_in_their_own_order(patterns: list[str], ids: list[str]) -> None:
    assert [cell.id for cell in select_cells(CELLS, patterns)] == ids


def test_a_pattern_without_a_cell_names_the_nearest_ids() -> None:
    with pytest.raises(UsageError, match="--cell eagle-s1-k1: no such cell; nearest: eagle-s1-k1-d2"):
        select_cells(CELLS, ["eagle-s1-k1"])


@pytest.mark.parametrize("pattern", ["eagle-s3-k2-d6", "*-k2-*"])
def test_a_pruned_cell_is_refused_with_the_reason_why_it_was_pruned(pattern: str) -> None:
    with pytest.raises(UsageError, match="not launched: eagle-s3-k2-d6: needs eagle_topk 1"):
        select_cells(CELLS, [pattern])


def test_all_patterns_without_a_cell_are_named_at_once() -> None:
    with pytest.raises(UsageError) as raised:
        select_cells(CELLS, ["a", "nomtp", "b"])
    assert len(str(raised.value).splitlines()) == 2


def test_without_a_gpu_the_cpu_matrix_runs() -> None:
    assert default_matrix(NO_GPU, MATRICES).name == "cpu-small.yaml"


@pytest.mark.parametrize("count", [4, 8])
def test_on_the_gpus_of_a_matrix_that_matrix_runs(count: int) -> None:
    assert default_matrix(machine(count), MATRICES).name == "rtx-pro-6000-dsv4-flash.yaml"


@pytest.mark.parametrize(
    "inventory", [machine(2), machine(8, "NVIDIA H100 80GB HBM3", 79.6), machine(8, total_gib=71.5)]
)
def test_other_gpus_have_no_matrix_and_the_message_says_which_they_are(inventory: Inventory) -> None:
    with pytest.raises(UsageError) as raised:
        default_matrix(inventory, MATRICES)
    assert str(raised.value).startswith(f"no matrix in {MATRICES}/ is for {inventory}: write one")
    assert "--matrix" in str(raised.value)


def test_two_matrices_for_one_machine_must_be_told_apart_by_name(tmp_path: Path) -> None:
    text = (MATRICES / "cpu-small.yaml").read_text()
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=r"2 matrices .* a.yaml, b.yaml; name one with --matrix"):
        default_matrix(NO_GPU, tmp_path)


def test_the_waivers_are_no_matrix(tmp_path: Path) -> None:
    (tmp_path / "known_bad.yaml").write_text("waivers: []\n")
    with pytest.raises(UsageError, match="no matrix in"):
        default_matrix(NO_GPU, tmp_path)


@pytest.mark.parametrize(
    ("name", "inventory", "gpus", "fault"),
    [
        ("rtx-pro-6000-dsv4-flash", NO_GPU, None, "is for other hardware: it needs 4 x NVIDIA RTX PRO 6000"),
        ("rtx-pro-6000-dsv4-flash", machine(8, "NVIDIA B200", 178.4), None, "here is 8 x NVIDIA B200"),
        ("rtx-pro-6000-dsv4-flash", machine(8, total_gib=47.5), None, "of 94.97 GiB each"),
        ("rtx-pro-6000-dsv4-flash", machine(4), 8, "--gpus 8: this machine has 4"),
        ("cpu-small", NO_GPU, 8, "--gpus 8: this machine has 0: no GPU (no NVML)"),
        ("cpu-small", machine(8), 8, "matrix cpu-small runs on the CPU; leave --gpus out"),
    ],
)
def test_hardware_that_cannot_run_a_matrix_is_refused_before_anything_is_launched(
    name: str, inventory: Inventory, gpus: int | None, fault: str
) -> None:
    with pytest.raises(UsageError) as raised:
        check_hardware(load_matrix(MATRICES / f"{name}.yaml"), inventory, gpus)
    assert fault in str(raised.value)


@pytest.mark.parametrize(
    ("name", "inventory", "gpus"),
    [
        ("rtx-pro-6000-dsv4-flash", machine(8), 8),
        ("rtx-pro-6000-dsv4-flash", machine(8), 4),
        ("rtx-pro-6000-dsv4-flash", machine(4), None),
        ("cpu-small", NO_GPU, None),
        ("cpu-small", machine(8), None),
    ],
)
def test_hardware_that_can_run_a_matrix_is_let_through(name: str, inventory: Inventory, gpus: int | None) -> None:
    check_hardware(load_matrix(MATRICES / f"{name}.yaml"), inventory, gpus)
