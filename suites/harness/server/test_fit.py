"""Relaunching and searching for what fits, with a GPU that is a formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mtpgate.server.bracket import Bracket
from mtpgate.server.diagnosis import Advice, Diagnosis, Evidence
from mtpgate.server.fit import Change, Trial, refit
from mtpgate.server.fit_search import Found, direction, search
from mtpgate.server.fit_words import told

OK = Diagnosis("ready", "ok", "the server got ready")
CRASH = Diagnosis("capture_target_verify", "kernel_unsupported", "no kernel image")


def oom(**advice: object) -> Diagnosis:
    numbers = {"tried": 7.5, "free": 2.3}
    return Diagnosis(
        "capture_target_verify", "oom_graph_capture", "", rank="TP1", numbers=numbers, advice=told_by(advice)
    )


def too_small(**advice: object) -> Diagnosis:
    return Diagnosis("kv_pool", "not_enough_memory", "", advice=told_by(advice))


def told_by(advice: Mapping[str, object]) -> Advice:
    return Advice(**advice)  # type: ignore[arg-type]


@dataclass
class Gpu:
    """Starts between two fractions, at most ``largest`` at graph batch limit 32 and less the larger the limit."""

    smallest: float
    largest: float
    advises: bool = False
    wrong_by: float = 0.0
    """How far off the advice is."""
    limit: int = 32
    per_size: float = 0.0
    """Of the fraction, for each request more in a graph."""
    changes: list[Change] = field(default_factory=list)

    def __call__(self, change: Change) -> Trial:
        self.changes.append(change)
        value = change["mem_fraction_static"]
        largest = self.largest - self.per_size * (change.get("cuda_graph_max_bs", self.limit) - self.limit)
        if value < self.smallest:
            return self.failed(too_small(min=self.off(self.smallest)) if self.advises else too_small())
        if value > largest:
            most = self.off(largest)
            return self.failed(oom(max=most, suggested=most - 0.02) if self.advises else oom())
        return Trial(True, 40.0, OK, max_running_requests=48)

    def off(self, value: float) -> float:
        return min(max(value + self.wrong_by, 0.0), 1.0)

    @staticmethod
    def failed(diagnosis: Diagnosis) -> Trial:
        return Trial(False, 30.0, diagnosis)


def in_turn(*diagnoses: Diagnosis) -> tuple[list[Change], object]:
    changes: list[Change] = []
    left = list(diagnoses)

    def launch(change: Change) -> Trial:
        changes.append(change)
        found = left.pop(0)
        return Trial(found.kind == "ok", 1.0, found)

    return changes, launch


# Relaunching with the advice


def test_the_advised_change_that_starts_is_what_fits() -> None:
    changes, launch = in_turn(OK)
    result = refit(oom(change={"cuda_graph_max_bs": 16}), launch)
    assert result.fits == {"cuda_graph_max_bs": 16}
    assert changes == [{"cuda_graph_max_bs": 16}]
    assert result.attempts[0].state == "ready"
    assert result.text.startswith("fit: it starts with cuda_graph_max_bs=16")


def test_later_advice_is_merged_on_top_of_the_earlier() -> None:
    first, second = {"cuda_graph_max_bs": 16, "mem_fraction_static": 0.62}, {"mem_fraction_static": 0.6}
    changes, launch = in_turn(oom(change=second), OK)
    result = refit(oom(change=first), launch)
    assert changes == [first, {"cuda_graph_max_bs": 16, "mem_fraction_static": 0.6}]
    assert result.fits == changes[-1]


def test_it_ends_after_three_relaunches() -> None:
    advised = [oom(change={"mem_fraction_static": fraction}) for fraction in (0.6, 0.5, 0.4, 0.3, 0.2)]
    changes, launch = in_turn(*advised[1:])
    result = refit(advised[0], launch)
    assert [change["mem_fraction_static"] for change in changes] == [0.6, 0.5, 0.4]
    assert result.fits is None
    assert "0.4: oom_graph_capture in capture_target_verify on TP1: 7.50 GiB wanted, 2.30 free" in result.text


@pytest.mark.parametrize(
    ("diagnosis", "why"),
    [
        (CRASH, "no failure of memory"),
        (oom(), "no change is advised"),
    ],
)
def test_nothing_is_launched_without_advice(diagnosis: Diagnosis, why: str) -> None:
    changes, launch = in_turn()
    result = refit(diagnosis, launch)
    assert (changes, result.fits) == ([], None)
    assert why in result.why


def test_it_ends_at_another_failure() -> None:
    changes, launch = in_turn(CRASH, OK)
    result = refit(oom(change={"mem_fraction_static": 0.6}), launch)
    assert len(changes) == 1
    assert result.why == "kernel_unsupported in capture_target_verify is no failure of memory"


def test_it_ends_where_the_advice_repeats() -> None:
    down, up = {"mem_fraction_static": 0.6}, {"mem_fraction_static": 0.66}
    changes, launch = in_turn(too_small(change=up), oom(change=down), OK)
    result = refit(oom(change=down), launch)
    assert changes == [down, up]
    assert "repeats: mem_fraction_static=0.6" in result.why


# Searching

fractions = st.floats(0.02, 0.98)


def check(found: Found, gpu: Gpu) -> None:
    """What must hold of every search's end."""
    launched = {item.change["mem_fraction_static"]: item.state for item in found.attempts}
    assert len(found.attempts) == len(gpu.changes)
    if found.fraction is not None:
        assert launched[found.fraction] == "ready"
    if found.refused is not None:
        assert launched[found.refused.value] == "failed"


@given(fractions, st.floats(0.0, 1.0), st.sampled_from([None, 0.3, 0.7, 0.999]), st.booleans())
def test_the_largest_fraction_is_found_to_the_resolution(
    largest: float, share: float, first: float | None, advises: bool
) -> None:
    gpu = Gpu(max(min(largest - 0.011, largest * share), 0.0), largest, advises)
    found = search(gpu, fraction=first)
    check(found, gpu)
    assert (found.ended, found.exact or found.fraction == 0.99) == ("found", True)
    assert found.fraction is not None
    assert found.fraction <= largest < found.fraction + 0.0100001


@given(fractions, fractions, st.floats(-0.5, 0.5))
@example(0.1, 0.6, -0.3)
@example(0.4, 0.6, 0.25)
def test_wrong_estimates_cost_launches_and_never_the_truth(smallest: float, largest: float, wrong_by: float) -> None:
    gpu = Gpu(smallest, largest, advises=True, wrong_by=wrong_by)
    found = search(gpu, fraction=0.7, max_launches=20)
    check(found, gpu)
    assert found.ended in ("found", "nothing"), "in a bounded number of launches"
    if smallest > largest:
        assert found.fraction is None
    elif largest - smallest > 0.011:
        assert found.fraction is not None
        assert smallest <= found.fraction <= largest < found.fraction + 0.0100001


def test_good_advice_saves_launches() -> None:
    advised, plain = Gpu(0.48, 0.645, advises=True), Gpu(0.48, 0.645)
    assert search(advised, fraction=0.7).fraction == search(plain, fraction=0.7).fraction == 0.64
    assert [change["mem_fraction_static"] for change in advised.changes] == [0.7, 0.62, 0.64, 0.65]
    assert len(plain.changes) > len(advised.changes)


def test_when_the_launches_are_used_up_the_interval_is_known() -> None:
    gpu = Gpu(0.1, 0.645)
    found = search(gpu, fraction=0.7, max_launches=3)
    assert (found.ended, len(gpu.changes)) == ("launches", 3)
    assert found.fraction is not None
    assert found.refused is not None
    assert found.fraction < 0.645 < found.refused.value
    assert f"between {found.fraction:g} (starts) and {found.refused.value:g}" in told(found)


def test_another_failure_ends_the_search_with_it() -> None:
    _, launch = in_turn(oom(), CRASH)
    found = search(launch, fraction=0.7)  # type: ignore[arg-type]
    assert (found.ended, len(found.attempts)) == ("failure", 2)
    assert "no kernel image" in told(found)


def test_no_fraction_helps_where_the_weights_do_not_fit() -> None:
    _, launch = in_turn(Diagnosis("weight_load", "oom_weights", "weights"))
    found = search(launch, fraction=0.7)  # type: ignore[arg-type]
    assert (found.ended, found.fraction) == ("failure", None)
    assert "no fraction helps against oom_weights" in found.why


def test_ctrl_c_keeps_what_is_known() -> None:
    gpu = Gpu(0.1, 0.6)

    def launch(change: Change) -> Trial:
        if len(gpu.changes) == 2:
            raise KeyboardInterrupt
        return gpu(change)

    found = search(launch, fraction=0.7)
    assert (found.ended, len(found.attempts)) == ("interrupted", 2)
    assert found.fraction == 0.35


def test_the_graph_limit_is_raised_at_the_largest_fraction() -> None:
    gpu = Gpu(0.1, 0.645, per_size=0.0004)
    found = search(gpu, fraction=0.6, graph_max_bs=32)
    assert (found.fraction, found.graph_max_bs) == (0.64, 32)
    assert found.graph_refused is not None
    assert found.graph_refused.value == 48, "what the server runs at once; a larger graph would never be replayed"
    assert gpu.changes[-1] == {"mem_fraction_static": 0.64, "cuda_graph_max_bs": 48}


def test_where_no_fraction_starts_a_smaller_graph_limit_is_sought() -> None:
    gpu = Gpu(0.65, 0.60, per_size=0.004)
    found = search(gpu, fraction=0.7, graph_max_bs=32, max_launches=20)
    assert (found.ended, found.fraction, found.graph_max_bs) == ("found", 0.65, 16)
    assert found.attempts[-1].change["cuda_graph_max_bs"] in (16, 24)
    assert "with cuda_graph_max_bs=16" in told(found)


def test_a_pool_that_cannot_be_allocated_is_too_large_not_too_small() -> None:
    evidence = (Evidence(7, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.50 GiB."),)
    refused = Diagnosis("kv_pool", "not_enough_memory", "", advice=Advice("raise"), evidence=evidence)
    assert direction(refused) == "lower"
    assert direction(too_small()) == "raise"


def test_what_was_found_is_told_with_the_launch_that_shows_its_end() -> None:
    text = told(search(Gpu(0.1, 0.625), fraction=0.7))
    assert "largest fraction that starts: 0.62 (0.63 does not: oom_graph_capture in capture_target_verify" in text


@given(st.floats(0.001, 0.2), st.floats(0.0, 1.0))
def test_a_step_is_at_most_its_fraction(resolution: float, fraction: float) -> None:
    bracket = Bracket(resolution)
    step = bracket.step(fraction)
    assert 0 < bracket.fraction(step) < 1
    assert bracket.fraction(step) <= max(fraction, resolution) + 1e-6
