"""The spelling of the fault switch."""

from __future__ import annotations

import pytest

from mtpgate.engine.fault import ACTIONS, POINTS, Fault, FaultSpellingError, parse_fault
from mtpgate.errors import UsageError

EVERY_FAULT = [
    Fault(point, action, None if ACTIONS[action].value is None else 3.0)
    for point, actions in POINTS.items()
    for action in actions
]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("verify:accept_wrong", Fault("verify", "accept_wrong", 1.0)),
        ("verify:accept_wrong=20", Fault("verify", "accept_wrong", 20.0)),
        ("forward:slow=0.30", Fault("forward", "slow", 0.3)),
        ("weights:raise_oom", Fault("weights", "raise_oom")),
        (" first_forward:exit=7 ", Fault("first_forward", "exit", 7.0)),
    ],
)
def test_a_fault_is_read_from_one_line(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize("fault", EVERY_FAULT, ids=str)
def test_every_fault_survives_being_written_and_read(fault: Fault) -> None:
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no fault"),
        ("weights", "is no fault"),
        ("wieghts:hang", "wieghts:hang is no fault"),
        ("weights:accept_wrong", "weights:accept_wrong is no fault"),
        ("weights:hang=3", "takes no value"),
        ("forward:slow", "needs a number, slow=N"),
        ("forward:slow=", "'' is not a number"),
        ("forward:slow=a lot", "'a lot' is not a number"),
        ("first_forward:exit=1.5", "'1.5' is not a number"),
    ],
)
def test_another_spelling_is_refused_with_the_valid_ones(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as error:
        parse_fault(text)
    for point in POINTS:
        assert f"{point}:" in str(error.value)


@pytest.mark.parametrize("text", ["forward:slow=-0.1", "forward:slow=inf", "forward:slow=nan", "verify:accept_wrong=0"])
def test_a_number_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="out of range"):
        parse_fault(text)


def test_a_fault_that_would_do_nothing_cannot_be_built() -> None:
    with pytest.raises(FaultSpellingError):
        Fault("verify", "slow", 0.3)
