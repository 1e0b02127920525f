"""When silence is a stall: the log, compilers, reading and CPU time as signs of life of different weight."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mtpgate.matrix.vocabulary import Phase
from mtpgate.server.activity import Activity
from mtpgate.server.deadlines import Deadlines
from mtpgate.server.stall import BUSY_FACTOR, MOVING_BYTES, StallWatch

LIMIT = 100.0
TOTAL = 1000.0
CAPTURE: Phase = "capture_target_verify"

IDLE = Activity(1.0, {"sglang::scheduler_TP0": 0.01}, most_cores=0.01, processes=3)
BUSY = Activity(1.0, {"sglang::scheduler_TP0": 1.0}, most_cores=1.0, processes=3)
COMPILING = Activity(1.0, {"cicc": 0.9}, most_cores=0.9, compilers=("cicc",), processes=4)
READING = Activity(1.0, {}, moved_bytes=2 * MOVING_BYTES, processes=3)

Doing = Callable[[int], Activity]


def watch(phase: Phase = CAPTURE, *, visible: bool = True, total: float = TOTAL) -> StallWatch:
    return StallWatch(Deadlines.with_overrides({phase: total}, {phase: LIMIT}), visible=visible)


def stalled_at(doing: Doing, *, phase: Phase = CAPTURE, watched: StallWatch | None = None) -> int | None:
    """The second at which a launch that logs nothing after its first byte and does ``doing(second)`` is stalled."""
    stall = watched or watch(phase)
    stall.grown(1, 0.0)
    for second in range(1, int(TOTAL) + 10):
        stall.grown(1, float(second))
        stall.saw(doing(second), phase, float(second))
        if stall.stalled(phase, float(second)):
            return second
    return None


def test_silent_and_idle_is_stalled_right_after_the_limit() -> None:
    assert stalled_at(lambda _: IDLE) == LIMIT + 1


def test_silent_and_busy_gets_longer_but_not_for_ever() -> None:
    assert stalled_at(lambda _: BUSY) == LIMIT * BUSY_FACTOR + 1


def test_busy_limit_is_cut_at_the_deadline() -> None:
    assert stalled_at(lambda _: BUSY, watched=watch(total=150.0)) == 151


def test_idle_after_a_busy_time_counts_from_its_end() -> None:
    assert stalled_at(lambda second: BUSY if second <= 50 else IDLE) == 50 + LIMIT + 1


def test_busy_now_and_then_is_no_longer_than_busy_all_the_time() -> None:
    assert stalled_at(lambda second: BUSY if second % 60 == 0 else IDLE) == LIMIT * BUSY_FACTOR + 1


def test_compiler_at_work_is_never_stalled() -> None:
    assert stalled_at(lambda _: COMPILING) is None


def test_compilers_one_after_the_other_are_alive() -> None:
    assert stalled_at(lambda second: COMPILING if second % 90 == 0 else IDLE) is None


def test_idle_after_compiling_is_stalled() -> None:
    assert stalled_at(lambda second: COMPILING if second <= 200 else IDLE) == 200 + LIMIT + 1


@pytest.mark.parametrize("phase", ["preflight", "weight_load", "draft_load"])
def test_reading_is_alive_while_something_is_loaded(phase: Phase) -> None:
    assert stalled_at(lambda _: READING, phase=phase) is None


def test_reading_elsewhere_is_as_weak_a_sign_as_cpu_time() -> None:
    assert stalled_at(lambda _: READING) == LIMIT * BUSY_FACTOR + 1


def test_reading_a_trickle_is_idle() -> None:
    trickle = Activity(1.0, {}, moved_bytes=MOVING_BYTES // 2, processes=3)
    assert stalled_at(lambda _: trickle, phase="weight_load") == LIMIT + 1


def test_processes_that_cannot_be_seen_are_not_taken_for_idle() -> None:
    assert stalled_at(lambda _: IDLE, watched=watch(visible=False)) == LIMIT * BUSY_FACTOR + 1


def test_any_byte_of_output_starts_the_silence_anew() -> None:
    stall = watch()
    for second in range(1, 500):
        stall.grown(second // 99, float(second))
        stall.saw(IDLE, CAPTURE, float(second))
        assert not stall.stalled(CAPTURE, float(second))


def test_truncated_log_is_a_sign_of_life() -> None:
    stall = watch()
    stall.grown(1000, 0.0)
    stall.grown(10, 90.0)
    stall.saw(IDLE, CAPTURE, 150.0)
    assert not stall.stalled(CAPTURE, 150.0)


def test_phase_without_an_end_is_never_stalled() -> None:
    stall = watch()
    stall.saw(IDLE, "serving", 1e6)
    assert not stall.stalled("serving", 1e6)
    assert stall.signs("serving", 1e6).limit_seconds is None


def words_after(doing: Doing, seconds: int, phase: Phase = CAPTURE) -> str:
    stall = watch(phase)
    stall.grown(1, 0.0)
    for second in range(1, seconds + 1):
        stall.saw(doing(second), phase, float(second))
    return stall.signs(phase, float(seconds)).words()


@pytest.mark.parametrize(
    ("doing", "seconds", "words"),
    [
        (lambda _: IDLE, 101, "no output for 101 s (limit 100 s), processes idle (1.0 s CPU by 3 processes: "),
        (lambda _: BUSY, 301, "no output for 301 s (limit 300 s), processes busy (301.0 s CPU by 3 processes: "),
        (
            lambda second: BUSY if second <= 50 else IDLE,
            151,
            "no output for 151 s, no sign of life for 101 s (limit 100 s), processes idle (51.0 s CPU",
        ),
        (lambda _: COMPILING, 990, "no output for 990 s, compilers at work: cicc (891.0 s CPU by 4 processes: cicc"),
        (
            lambda _: READING,
            301,
            "no output for 301 s (limit 300 s), processes reading (0.0 s CPU by 3 processes; 631 MB",
        ),
    ],
)
def test_what_was_seen_is_told(doing: Doing, seconds: int, words: str) -> None:
    assert words_after(doing, seconds).startswith(words)


def test_processes_that_cannot_be_seen_are_told_as_such() -> None:
    stall = watch(visible=False)
    assert (
        stall.signs(CAPTURE, 301.0).words()
        == "no output for 301 s (limit 300 s), its processes cannot be seen from here"
    )


def test_cpu_time_before_the_last_output_is_not_counted() -> None:
    stall = watch()
    stall.grown(1, 10.5)
    stall.saw(BUSY, CAPTURE, 11.0)
    stall.saw(IDLE, CAPTURE, 12.0)
    assert stall.signs(CAPTURE, 12.0).cpu == (("sglang::scheduler_TP0", 0.01),)


def test_limit_that_applies_follows_what_the_processes_do() -> None:
    stall = watch()
    stall.saw(BUSY, CAPTURE, 20.0)
    assert stall.signs(CAPTURE, 20.0).limit_seconds == LIMIT * BUSY_FACTOR
    stall.saw(IDLE, CAPTURE, 40.0)
    assert stall.signs(CAPTURE, 40.0).limit_seconds == LIMIT
