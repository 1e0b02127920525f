"""From axes to cells: which launches there are, what they are called, and why the others are not."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpgate.errors import UsageError
from mtpgate.matrix.cell import Expansion, PrunedCell, Waiver
from mtpgate.matrix.expand import expand, try_expand
from mtpgate.matrix.ids import cell_id
from mtpgate.matrix.schema import Matrix, SpeculationPoint

LOAD = {"concurrency": 16, "input_tokens": 8, "output_tokens": 8, "requests": 16}
S1 = {"num_steps": 1, "eagle_topk": 1, "num_draft_tokens": 2}
S3 = {"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}


def matrix(**changes: Any) -> Matrix:
    keys = {
        "name": "m",
        "hardware": {"kind": "cuda", "gpu": "NVIDIA X", "count": 8},
        "engine": "sglang",
        "model": {"path": "some/model"},
        "workloads": [LOAD],
    }
    return Matrix.model_validate(keys | changes)


def ids(expansion: Expansion) -> list[str]:
    return [cell.id for cell in expansion.cells]


def reasons(expansion: Expansion) -> dict[str, str]:
    return {pruned.id: pruned.reason for pruned in expansion.pruned}


def test_a_matrix_without_axes_is_one_cell() -> None:
    assert ids(expand(matrix())) == ["nomtp"]


def test_cells_are_all_combinations_of_the_axes() -> None:
    axes = {"speculation": [None, S1], "mem_fraction_static": [0.7, 0.6], "cuda_graph_max_bs": [32, 16]}
    found = ids(expand(matrix(axes=axes)))
    assert len(found) == 8
    assert {"nomtp-f0.60-bs16", "eagle-s1-k1-d2-f0.60-bs16"} <= set(found)


def test_an_axis_with_one_point_is_not_in_the_ids() -> None:
    axes = {"speculation": [None, S1], "mem_fraction_static": [0.7], "cuda_graph_max_bs": [32, 16]}
    assert ids(expand(matrix(axes=axes)))[:2] == ["nomtp-bs32", "nomtp-bs16"]


@pytest.mark.parametrize(
    ("name", "values", "shown"),
    [
        ("mem_fraction_static", [0.6, 0.645], ["nomtp-f0.60", "nomtp-f0.645"]),
        ("attention_backend", ["fa3", "triton"], ["nomtp-fa3", "nomtp-triton"]),
        ("enable_mixed_chunk", [False, True], ["nomtp-no-mixed-chunk", "nomtp-mixed-chunk"]),
        ("page_size", [None, 64], ["nomtp", "nomtp-page64"]),
        (
            "quantization_param_path",
            ["/a/b c.json", "/a/d"],
            ["nomtp-quantization-param-path-b_c.json", "nomtp-quantization-param-path-d"],
        ),
    ],
)
def test_values_are_shown_so_that_ids_stay_short_and_safe(name: str, values: list[Any], shown: list[str]) -> None:
    assert ids(expand(matrix(axes={name: values}, reference=shown[0]))) == shown


def test_a_point_may_set_several_arguments() -> None:
    axes = {
        "size": [
            {"mem_fraction_static": 0.7, "cuda_graph_max_bs": 32},
            {"mem_fraction_static": 0.6, "cuda_graph_max_bs": 16},
        ]
    }
    assert ids(expand(matrix(axes=axes))) == ["nomtp-f0.70-bs32", "nomtp-f0.60-bs16"]


def test_null_unsets_a_base_argument() -> None:
    cells = expand(matrix(arguments={"page_size": 64}, axes={"page_size": [64, None]}, reference="nomtp")).cells
    assert dict(cells[0].arguments) == {}


def test_speculation_may_be_written_as_separate_axes() -> None:
    axes = {
        "speculative_algorithm": [None, "EAGLE"],
        "speculative_num_steps": [1, 3],
        "speculative_eagle_topk": [1],
        "speculative_num_draft_tokens": [2, 4],
    }
    assert ids(expand(matrix(axes=axes))) == ["nomtp", "eagle-s1-k1-d2", "eagle-s3-k1-d4"]


def test_without_speculation_the_speculative_axes_make_one_cell() -> None:
    axes = {"speculative_algorithm": [None, "EAGLE"], "speculative_num_steps": [1, 2], "speculative_eagle_topk": [1]}
    expansion = expand(matrix(axes=axes))
    assert ids(expansion).count("nomtp") == 1
    assert expansion.pruned[0] == PrunedCell(
        "nomtp-s1-k1",
        "the same launch as nomtp: without speculative_algorithm SGLang ignores "
        "speculative_num_steps, speculative_eagle_topk",
        "nomtp",
    )


def test_a_rewritten_point_is_the_same_launch_as_what_it_is_rewritten_to() -> None:
    expansion = expand(matrix(axes={"speculation": [None, S1, S1 | {"num_draft_tokens": 8}]}))
    assert ids(expansion) == ["nomtp", "eagle-s1-k1-d2"]
    assert expansion.pruned[0].same_launch_as == "eagle-s1-k1-d2"


def test_a_rewritten_point_is_launched_as_what_really_runs() -> None:
    expansion = expand(matrix(axes={"speculation": [None, S1 | {"num_draft_tokens": 8}]}))
    assert expansion.cells[1].id == "eagle-s1-k1-d2"
    assert expansion.cells[1].speculation.num_draft_tokens == 2
    assert reasons(expansion) == {
        "eagle-s1-k1-d8": "the same launch as eagle-s1-k1-d2: "
        "at eagle_topk 1 SGLang rewrites num_draft_tokens 8 to num_steps + 1 = 2"
    }


def test_a_limit_that_sglang_fills_in_is_the_same_launch() -> None:
    axes = {"speculation": [None, S1], "max_running_requests": [None, 48]}
    expansion = expand(matrix(axes=axes, reference="nomtp"))
    assert ids(expansion) == ["nomtp", "nomtp-run48", "eagle-s1-k1-d2"]
    assert expansion.pruned[0].same_launch_as == "eagle-s1-k1-d2"


def test_excluded_points_carry_their_reason() -> None:
    exclude = [{"when": {"speculation": {"num_steps": 3}, "mem_fraction_static": ">0.6"}, "reason": "too large"}]
    expansion = expand(matrix(axes={"speculation": [None, S3], "mem_fraction_static": [0.7, 0.6]}, exclude=exclude))
    assert reasons(expansion) == {"eagle-s3-k1-d4-f0.70": "excluded: too large"}


def test_an_exclude_holds_for_what_a_point_is_rewritten_to() -> None:
    exclude = [{"when": {"speculation": {"num_draft_tokens": 2}}, "reason": "no"}]
    expansion = expand(matrix(axes={"speculation": [None, S1 | {"num_draft_tokens": 8}]}, exclude=exclude))
    assert ids(expansion) == ["nomtp"]


def test_a_condition_sets_arguments_variables_and_floor_of_the_cells_that_match() -> None:
    conditions = [
        {
            "when": {"speculation": {"eagle_topk": ">1"}},
            "arguments": {"attention_backend": "triton"},
            "environment": {"A": 1},
            "accept_length_floor": 1.5,
        }
    ]
    tree = {"num_steps": 3, "eagle_topk": 2, "num_draft_tokens": 6}
    expansion = expand(matrix(axes={"speculation": [None, S3, tree]}, conditions=conditions, accept_length_floor=1.2))
    plain, chain, wide = expansion.cells
    assert plain.accept_length_floor is None
    assert "attention_backend" not in chain.arguments
    assert (chain.accept_length_floor, wide.accept_length_floor) == (1.2, 1.5)
    assert wide.arguments["attention_backend"] == "triton"
    assert wide.environment == {"A": "1"}


def test_points_that_a_condition_makes_equal_are_one_launch() -> None:
    conditions = [{"when": {"speculation": {}}, "arguments": {"cuda_graph_max_bs": 16}}]
    axes = {"speculation": [None, S1], "cuda_graph_max_bs": [32, 16]}
    expansion = expand(matrix(axes=axes, conditions=conditions))
    assert ids(expansion) == ["nomtp-bs32", "nomtp-bs16", "eagle-s1-k1-d2-bs16"]
    assert expansion.pruned[0].id == "eagle-s1-k1-d2-bs32"


def test_an_included_cell_is_named_by_what_it_has_beside_the_base() -> None:
    include = [{"speculation": S1, "context_length": 65536}]
    assert ids(expand(matrix(axes={"speculation": [None, S1]}, include=include)))[-1] == "eagle-s1-k1-d2-ctx65536"


def test_including_a_cell_does_not_rename_the_others() -> None:
    axes = {"speculation": [None, S1]}
    before = ids(expand(matrix(axes=axes)))
    assert ids(expand(matrix(axes=axes, include=[{"context_length": 65536}])))[:2] == before


def test_including_a_cell_that_is_there_is_an_error() -> None:
    with pytest.raises(UsageError, match="eagle-s1-k1-d2 is already a cell"):
        expand(matrix(axes={"speculation": [None, S1]}, include=[{"speculation": S1}]))


def test_two_launches_with_one_id_are_an_error() -> None:
    with pytest.raises(UsageError, match="two different launches would both be"):
        expand(matrix(axes={"quantization_param_path": ["/a/x", "/b/x"]}))


def test_the_reference_comes_first() -> None:
    axes = {"speculation": [S1, None], "mem_fraction_static": [0.7, 0.6]}
    expansion = expand(matrix(axes=axes, reference="nomtp-f0.60"))
    assert ids(expansion) == ["nomtp-f0.60", "eagle-s1-k1-d2-f0.70", "eagle-s1-k1-d2-f0.60", "nomtp-f0.70"]
    assert expansion.reference.id == "nomtp-f0.60"


def test_the_reference_may_be_named_by_its_arguments() -> None:
    axes = {"speculation": [None, S1], "mem_fraction_static": [0.7, 0.6]}
    reference = {"speculation": None, "mem_fraction_static": 0.6}
    assert expand(matrix(axes=axes, reference=reference)).reference.id == "nomtp-f0.60"


def test_by_default_the_reference_is_the_first_cell_without_speculation() -> None:
    assert expand(matrix(axes={"speculation": [S1, None]})).reference.id == "nomtp"


@pytest.mark.parametrize(
    ("arguments", "gpus"),
    [
        ({}, 1),
        ({"tp_size": 4}, 4),
        ({"tp_size": 2, "pp_size": 2}, 4),
        ({"tp_size": 2, "dp_size": 2}, 4),
        ({"tp_size": 4, "dp_size": 4, "enable_dp_attention": True}, 4),
    ],
)
def test_a_launch_occupies_the_gpus_of_its_ranks(arguments: dict[str, Any], gpus: int) -> None:
    assert expand(matrix(arguments=arguments)).cells[0].gpus == gpus


def test_a_cell_larger_than_the_hardware_is_an_error() -> None:
    with pytest.raises(UsageError, match="nomtp needs 16 GPUs, more than hardware"):
        expand(matrix(arguments={"tp_size": 16}))


def test_a_cpu_cell_occupies_no_gpu() -> None:
    assert expand(matrix(hardware={"kind": "cpu"}, engine="embedded")).cells[0].gpus == 0


def test_waivers_go_to_the_cells_of_their_pattern_and_matrix() -> None:
    waivers = [Waiver("eagle-*", "startup", "r"), Waiver("*", "parity", "r", matrix="other")]
    cells = expand(matrix(axes={"speculation": [None, S1]}), waivers).cells
    assert [cell.waivers for cell in cells] == [(), (waivers[0],)]


SPECULATIVE_POINT = st.fixed_dictionaries(
    {},
    optional={
        "algorithm": st.sampled_from(["EAGLE", "eagle", "NEXTN", "EAGLE3", "NGRAM"]),
        "num_steps": st.integers(1, 4),
        "eagle_topk": st.integers(1, 3),
        "num_draft_tokens": st.integers(1, 9),
    },
)
ANY_AXES = st.fixed_dictionaries(
    {"speculation": st.lists(SPECULATIVE_POINT, max_size=6).map(lambda points: [None, *points])},
    optional={
        "mem_fraction_static": st.lists(st.sampled_from([0.5, 0.6, 0.645, 0.7]), min_size=1, unique=True),
        "max_running_requests": st.lists(st.sampled_from([None, 8, 32, 48]), min_size=1, unique=True),
        "attention_backend": st.lists(
            st.sampled_from([None, "fa3", "flashmla", "torch_native"]), min_size=1, unique=True
        ),
    },
)


def _without_repeats(axes: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """As the schema wants it: a point that leaves the algorithm out and one that names EAGLE are the same point."""
    points = [None if point is None else {"algorithm": "EAGLE", **point} for point in axes["speculation"]]
    return axes | {"speculation": [point for i, point in enumerate(points) if point not in points[:i]]}


@settings(max_examples=100, deadline=None)
@given(ANY_AXES.map(_without_repeats), st.sampled_from([None, "DeepseekV4ForCausalLM"]))
def test_every_point_is_one_cell_or_pruned_with_a_reason_under_ids_of_their_own(axes: Any, architecture: Any) -> None:
    made = matrix(axes=axes, model={"path": "p", "architecture": architecture})
    expansion, faults = try_expand(made)
    if expansion is None:
        # The one thing that such axes can lack is a reference: every cell without speculation was refused.
        assert [text for _, text in faults if "every cell speculates" not in text] == []
        return
    names = ids(expansion) + [pruned.id for pruned in expansion.pruned]
    assert len(set(names)) == len(names)
    assert all(pruned.reason for pruned in expansion.pruned)
    assert {pruned.same_launch_as for pruned in expansion.pruned} - {None} <= set(ids(expansion))
    others = [name for name in axes if name != "speculation"]
    for speculation, *values in itertools.product(axes["speculation"], *(axes[name] for name in others)):
        asked = {} if speculation is None else SpeculationPoint(**speculation).arguments()
        asked = {name: value for name, value in (asked | dict(zip(others, values, strict=True))).items() if value}
        named = [name for name in others if len(axes[name]) > 1]
        assert {cell_id(asked, named), cell_id(_filled(asked), named)} & set(names)


def _filled(asked: dict[str, Any]) -> dict[str, Any]:
    """The silent part of a rewriting: draft tokens that nobody asked for."""
    return asked | {"speculative_num_draft_tokens": asked.get("speculative_num_steps", 0) + 1}
