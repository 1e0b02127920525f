"""Forecasts against a GPU that obeys SGLang's equations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpgate.matrix.cell import Cell, Speculation
from mtpgate.server.budget import Budget, RankBudget
from mtpgate.server.forecast import Forecast, KnownLaunch, compare, forecast

BEFORE, WEIGHTS, DRAFT, OTHER = 94.17, 43.62, 1.83, 4.0
PER_TOKEN = 0.1
"""GiB of target graphs for each token in the largest of them."""
S1, S3 = Speculation("EAGLE", 1, 1, 2), Speculation("EAGLE", 3, 1, 4)


def cell(id_: str, fraction: float = 0.6, limit: int = 16, spec: Speculation | None = None, **more: object) -> Cell:
    arguments = {"mem_fraction_static": fraction, "cuda_graph_max_bs": limit, **more}
    return Cell(id_, arguments, speculation=spec)  # type: ignore[arg-type]


def launch(of: Cell, before: float = BEFORE, *, ranks: tuple[float, ...] = ()) -> KnownLaunch:
    """What the launch of a cell leaves in its log, by the equations."""
    spec, fraction = of.speculation, float(of.arguments["mem_fraction_static"])
    limit = int(of.arguments["cuda_graph_max_bs"])
    draft = DRAFT if spec else 0.0
    tokens = spec.num_draft_tokens if spec else 1
    smallest = min(ranks or (before,))
    pool = smallest * fraction - WEIGHTS - draft
    graphs = {"capture_target_verify" if spec else "capture_target_decode": PER_TOKEN * limit * tokens}
    if spec:
        graphs["capture_draft_extend"] = 0.01 * limit * tokens
        if spec.num_steps > 1:
            graphs["capture_draft_decode"] = 0.005 * limit
    made = []
    for index, size in enumerate(ranks or (before,)):
        left = size - WEIGHTS - draft - pool - sum(graphs.values()) - OTHER
        share = pool / 10 if spec else None
        made.append(
            RankBudget(
                f"TP{index}" if ranks else None,
                before_load=size,
                weights=WEIGHTS,
                draft_weights=draft or None,
                kv=pool - (share or 0.0),
                draft_kv=share,
                kv_tokens=round(pool * 100_000),
                graphs=graphs,  # type: ignore[arg-type]
                left=left,
            )
        )
    sizes = dict.fromkeys(graphs, (1, 2, limit))
    return KnownLaunch(of, Budget(fraction, graph_batch_sizes=sizes, ranks=tuple(made)))  # type: ignore[arg-type]


def of(target: Cell, *known: Cell) -> Forecast:
    found = forecast(target, [launch(item) for item in known])
    assert found is not None
    return found


def test_without_a_known_launch_nothing_is_predicted() -> None:
    assert forecast(cell("x"), []) is None
    assert forecast(cell("x"), [KnownLaunch(cell("y"), Budget())]) is None


def test_a_launch_with_other_parallelism_says_nothing() -> None:
    assert forecast(cell("x", tp_size=8), [launch(cell("y", tp_size=4))]) is None


@given(st.floats(0.52, 0.85), st.sampled_from([1, 8, 16, 32]), st.sampled_from([None, S1, S3]))
def test_a_cell_of_the_same_kind_is_predicted_to_the_hundredth(
    fraction: float, limit: int, spec: Speculation | None
) -> None:
    target = cell("target", fraction, limit, spec)
    predicted = of(target, cell("known", 0.6, 16, spec))
    assert dict(launch(target).budget.ranks[0].segments())["weights"] == predicted.predicted["weights"]
    measured = launch(target).budget.ranks[0]
    assert predicted.left_gib == pytest.approx(measured.left, abs=0.02)
    assert predicted.predicted["kv"] == pytest.approx(measured.kv, abs=0.02)
    if abs(predicted.left_gib or 0.0) > 1:
        assert predicted.fits is ((measured.left or 0.0) > 0)


def test_draft_tokens_and_batch_sizes_scale_the_graphs() -> None:
    small = of(cell("target", 0.6, 16, S3), cell("known", 0.6, 16, S1))
    large = of(cell("target", 0.6, 32, S3), cell("known", 0.6, 16, S1))
    assert small.predicted["capture_target_verify"] == pytest.approx(PER_TOKEN * 16 * 4, abs=0.01)
    assert large.predicted["capture_target_verify"] == pytest.approx(PER_TOKEN * 32 * 4, abs=0.01)


def test_the_graphs_of_a_plain_cell_are_known_from_a_speculative_one() -> None:
    found = of(cell("target", 0.6, 32), cell("known", 0.6, 16, S3))
    assert found.predicted["capture_target_decode"] == pytest.approx(PER_TOKEN * 32, abs=0.01)
    assert found.fits is True
    assert not {"draft_weights", "capture_draft_extend"} & set(found.predicted)


def test_draft_graphs_that_no_launch_captured_are_unknown() -> None:
    found = of(cell("target", 0.6, 16, S3), cell("known", 0.6, 16, S1))
    assert found.fits is None
    assert "the graphs of capture_draft_decode: no known launch captured them" in found.text


@pytest.mark.parametrize("name", ["enable_torch_compile", "disable_cuda_graph", "kv_cache_dtype"])
def test_a_launch_with_other_memory_says_nothing(name: str) -> None:
    assert forecast(cell("x"), [launch(cell("y", **{name: True}))]) is None


def test_too_large_a_fraction_does_not_fit_and_says_by_how_much() -> None:
    found = of(cell("target", 0.9, 32, S1), cell("known", 0.6, 16, S1))
    assert found.fits is False
    assert found.left_gib == pytest.approx(BEFORE * 0.1 - PER_TOKEN * 64 - 0.01 * 64 - OTHER, abs=0.02)
    assert "does not fit, -" in found.text


def test_too_small_a_fraction_leaves_no_pool() -> None:
    found = of(cell("target", 0.45), cell("known"))
    assert found.fits is False
    assert "no room for a KV pool" in found.text


def test_a_draft_that_no_launch_had_is_unknown() -> None:
    found = of(cell("target", 0.6, 16, S1), cell("known"))
    assert found.fits is None
    assert "draft_weights" not in found.predicted
    assert "not known: the draft's weights: no launch with a draft is known" in found.text
    assert "at most" in found.text


def test_what_does_not_fit_without_the_unknown_does_not_fit_with_it() -> None:
    assert of(cell("target", 0.97, 32, S1), cell("known")).fits is False


def test_a_narrow_remainder_is_not_called() -> None:
    fraction = 1 - (OTHER + PER_TOKEN * 16 + 0.3) / BEFORE
    found = of(cell("target", fraction), cell("known"))
    assert found.fits is None
    assert "too close to call" in found.text


def test_max_total_tokens_caps_the_pool() -> None:
    known = launch(cell("known"))
    found = forecast(cell("target", 0.9, max_total_tokens=16384), [known])
    rank = known.budget.ranks[0]
    assert found is not None
    assert rank.kv is not None
    assert rank.kv_tokens is not None
    assert found.predicted["kv"] == pytest.approx(16384 * rank.kv / rank.kv_tokens, abs=0.01)
    assert found.fits is True, "the pool is far below what the fraction allows"


def test_the_closest_launch_is_the_source() -> None:
    known = (cell("plain"), cell("s1", 0.6, 16, S1), cell("s3-f0.70", 0.7, 16, S3), cell("s3-f0.60", 0.6, 16, S3))
    assert of(cell("target", 0.65, 16, S3), *known).from_cell in ("s3-f0.70", "s3-f0.60")
    assert of(cell("target", 0.61, 16, S3), *known).from_cell == "s3-f0.60"
    assert of(cell("target", 0.61, 16, S1), *known).from_cell == "s1"
    assert of(cell("target", 0.61, 16), *known).from_cell == "plain"


def test_draft_tokens_make_two_launches_closer_than_steps_do() -> None:
    wide = Speculation("EAGLE", 4, 2, 6)
    known = (cell("s3-k1-d4", spec=S3), cell("s3-k2-d8", spec=Speculation("EAGLE", 3, 2, 8)), cell("wide", spec=wide))
    assert of(cell("target", spec=Speculation("EAGLE", 3, 2, 6)), *known).from_cell == "wide"


def test_the_rank_with_the_least_left_decides() -> None:
    known = launch(cell("known"), ranks=(94.4, 92.0, 94.4))
    found = forecast(cell("target", 0.7), [known])
    expected = launch(cell("target", 0.7), ranks=(94.4, 92.0, 94.4)).budget
    assert found is not None
    assert found.left_gib == pytest.approx(min(rank.left or 0.0 for rank in expected.ranks), abs=0.02)


def test_a_forecast_is_compared_segment_by_segment() -> None:
    target = cell("target", 0.65, 32, S1)
    rows = compare(of(target, cell("known", 0.6, 16, S1)), launch(target).budget)
    assert [row[0] for row in rows][-2:] == ["other", "left"]
    for name, predicted, measured in rows:
        assert predicted == pytest.approx(measured, abs=0.02), name


def test_a_segment_that_was_not_predicted_is_shown_as_missing() -> None:
    rows = compare(of(cell("t", 0.6, 16, S1), cell("known")), launch(cell("t", 0.6, 16, S1)).budget)
    assert ("draft_weights", None, DRAFT) in rows


def test_a_segment_that_was_not_measured_is_shown_as_missing() -> None:
    rows = compare(of(cell("t", 0.6, 16, S3), cell("known", 0.6, 16, S3)), launch(cell("t", 0.6, 16, S1)).budget)
    missing = [row for row in rows if row[0] == "capture_draft_decode"]
    assert [row[2] for row in missing] == [None]
