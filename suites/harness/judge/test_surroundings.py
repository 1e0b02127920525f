"""Conditions beside those of the baseline: only what changed is told."""

from __future__ import annotations

import pytest

from mtpgate.judge.surroundings import condition_changes

USUAL = [{"clock_sm_mhz": 1960.0, "other_cores": 0.1}, {"clock_sm_mhz": 1970.0, "other_cores": 0.1, "steal_share": 0}]


def test_a_lower_clock_is_told_with_both_figures() -> None:
    assert condition_changes({"clock_sm_mhz": 1580.0}, USUAL) == ("clock_sm_mhz 1580, the baseline's 1965 (-20%)",)


@pytest.mark.parametrize("now", [{"clock_sm_mhz": 1940.0}, {"other_cores": 0.3}, {"unknown": 5.0}, {}])
def test_what_is_as_usual_or_not_known_is_not_told(now: dict[str, float]) -> None:
    assert condition_changes(now, USUAL) == ()


def test_shares_and_cores_are_compared_by_their_difference() -> None:
    now = {"other_cores": 1.2, "steal_share": 0.05}
    assert condition_changes(now, USUAL) == (
        "other_cores 1.2, the baseline's 0.1",
        "steal_share 0.05, the baseline's 0",
    )


def test_without_a_baseline_there_is_nothing_to_tell() -> None:
    assert condition_changes({"clock_sm_mhz": 1580.0}, []) == ()
