"""The spelling of the fault switch."""

from __future__ import annotations

import pytest

from mtpgate.engine.fault import ACTIONS, POINTS, Fault, FaultSpellingError, parse_fault
from mtpgate.engine.overlay.mtpgate_engine.oom import above_text
from mtpgate.errors import UsageError
from mtpgate.server.diagnose import diagnose_lines

EVERY_FAULT = [
    Fault(point, action, None if (kind := ACTIONS[action]).value is None else min(3.0, kind.most))
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
        ("pool:raise_oom_above=0.45", Fault("pool", "raise_oom_above", 0.45)),
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
        ("capture:raise_oom_above", "needs a number, raise_oom_above=N"),
        ("capture:raise_oom_above=half", "'half' is not a number"),
        ("weights:raise_oom_above=0.5", "weights:raise_oom_above is no fault"),
    ],
)
def test_another_spelling_is_refused_with_the_valid_ones(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as error:
        parse_fault(text)
    for point in POINTS:
        assert f"{point}:" in str(error.value)


@pytest.mark.parametrize(
    "text",
    ["forward:slow=-0.1", "forward:slow=inf", "forward:slow=nan", "verify:accept_wrong=0", "pool:raise_oom_above=45"],
)
def test_a_number_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="out of range"):
        parse_fault(text)


def test_a_fault_that_would_do_nothing_cannot_be_built() -> None:
    with pytest.raises(FaultSpellingError):
        Fault("verify", "slow", 0.3)


@pytest.mark.parametrize(("fraction", "largest"), [(0.5, 0.45), (0.46, 0.45), (0.9, 0.1)])
def test_an_out_of_memory_above_a_fraction_has_numbers_that_lead_back_to_it(fraction: float, largest: float) -> None:
    available = 21.84
    found = diagnose_lines([f"torch.OutOfMemoryError: {above_text(fraction, largest, available)}"]).numbers
    tried, free, total, used = (float(str(found[name])) for name in ("tried", "free", "total", "in_use"))
    assert used + free == pytest.approx(total, abs=0.02)
    most = fraction - (tried - free) / available
    assert largest <= most + 0.001
    assert most == pytest.approx(largest + 0.02 * (fraction - largest), abs=0.001)
