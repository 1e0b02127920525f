"""Ramp-up and tail are cut from a pass; what is left is the time in which all slots are busy."""

from __future__ import annotations

import pytest

from mtpgate.load.figures import distributions
from mtpgate.load.measurement import Arrival, RequestRecord
from mtpgate.load.steady import steady_state, tokens_by, within


def request(slot: int, sent: float, *arrivals: tuple[float, int], error: str | None = None) -> RequestRecord:
    pieces = tuple(Arrival(time, count) for time, count in arrivals)
    finished = pieces[-1].time if pieces else sent
    tokens = pieces[-1].completion_tokens if pieces else 0
    return RequestRecord("prose-0", slot, sent, pieces, finished, 10, tokens, "", {}, error)


def even(slot: int, sent: float, tokens: int, gap: float = 1.0) -> RequestRecord:
    return request(slot, sent, *((sent + gap * number, number) for number in range(1, tokens + 1)))


def test_the_window_is_from_the_last_first_send_to_the_first_slot_that_is_done():
    steady = steady_state([even(0, 0.0, 4), even(1, 0.5, 4), even(0, 4.0, 4), even(1, 4.5, 6)])
    assert (steady.started, steady.ended) == (0.5, 8.0)
    assert (steady.ramp_seconds, steady.tail_seconds) == (0.5, 2.5)
    assert steady.concurrency == 2.0


def test_equal_requests_on_equal_slots_have_the_rate_of_one_cycle():
    """A server of known pace: 2 s to the first token, then one a second, three requests a slot."""
    records = []
    for slot in range(3):
        sent = 0.001 * slot
        for _ in range(3):
            records.append(request(slot, sent, *((sent + 1 + number, number) for number in range(1, 9))))
            sent = records[-1].finished
    steady = steady_state(records)
    assert steady.output_tokens_per_second == pytest.approx(3 * 8 / 9, rel=0.001)
    assert steady.total_tokens_per_second == pytest.approx(3 * (8 + 10) / 9, rel=0.001)


def test_a_slow_straggler_does_not_lower_the_rate_of_the_steady_state():
    balanced = steady_state([even(0, 0.0, 100), even(1, 0.0, 100)])
    straggling = steady_state([even(0, 0.0, 100), even(1, 0.0, 200)])
    assert straggling.tail_seconds == 100.0
    assert straggling.output_tokens_per_second == balanced.output_tokens_per_second == 2.0


def test_the_order_of_the_pieces_of_one_step_at_an_edge_does_not_matter():
    first = steady_state([even(0, 0.0, 10), even(1, 1e-6, 20)])
    last = steady_state([even(0, 1e-6, 10), even(1, 0.0, 20)])
    assert first.output_tokens == pytest.approx(last.output_tokens, abs=1e-4)


def test_tokens_are_interpolated_between_two_pieces_and_not_before_the_first():
    one = request(0, 0.0, (2.0, 4), (4.0, 8))
    assert [tokens_by(one, when) for when in (1.9, 2.0, 3.0, 4.0, 9.0)] == [0.0, 4.0, 6.0, 8.0, 8.0]


def test_pieces_of_one_read_have_one_time():
    assert tokens_by(request(0, 0.0, (2.0, 4), (2.0, 8), (4.0, 12)), 2.0) == 8.0


def test_a_pass_with_a_failure_has_no_steady_state():
    assert steady_state([even(0, 0.0, 4), request(1, 0.0, (1.0, 1), error="cut")]) is None
    assert steady_state([]) is None


def test_slots_that_were_never_busy_together_have_no_steady_state():
    assert steady_state([even(0, 0.0, 2), even(1, 5.0, 2)]) is None


def test_pieces_of_the_tail_are_left_out_of_the_per_token_figures():
    fast, slow = even(0, 0.0, 4), request(1, 0.0, (1.0, 1), (2.0, 2), (3.0, 3), (12.0, 4))
    steady = steady_state([fast, slow])
    assert [arrival.time for arrival in within(slow, steady).arrivals] == [1.0, 2.0, 3.0]
    found = distributions([([fast, slow], steady)])
    assert found["itl_seconds"].mean == found["tpot_seconds"].mean == 1.0
    assert found["end_to_end_seconds"].samples == 2
