"""The client says how much it was in the way, and when that is too much."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from mtpgate.load import health
from mtpgate.load.health import HealthProbe, OwnTime, client_health
from mtpgate.load.honesty import client_objection
from mtpgate.load.measurement import Arrival, Repeat, RequestRecord


def request(slot: int, sent: float, gap: float = 0.005, tokens: int = 200) -> RequestRecord:
    pieces = tuple(Arrival(sent + gap * number, number) for number in range(1, tokens + 1))
    return RequestRecord("prose-0", slot, sent, pieces, pieces[-1].time, 10, tokens, "", {})


def of(own: OwnTime, *records: RequestRecord) -> Repeat:
    return Repeat(records, 0.0, 1.0, 200.0, (), (), None, client_health(records, own).__dict__)


FREE = OwnTime(
    cpu_share=0.1, lag_mean=0.0004, lag_max=0.001, late_by_stalls=0.00001, waiting_share=0.001, wait_mean=0.00001
)


def test_a_client_that_was_not_in_the_way_has_nothing_against_it():
    assert client_objection(of(FREE, request(0, 0.0))) is None


def test_a_client_without_a_core_of_its_own_voids_the_pass():
    """Another process had the core: a read was late by more than the gaps that it measures."""
    stolen = replace(FREE, waiting_share=0.4, wait_mean=0.006)
    said = client_objection(of(stolen, request(0, 0.0)))
    assert said == (
        "it read 6.00 ms late on average, with 5.00 ms between two chunks; "
        "it waited for a core in 40.0% of the time: give the client a core of its own"
    )


def test_the_same_lateness_is_nothing_beside_longer_gaps():
    assert client_objection(of(replace(FREE, wait_mean=0.006), request(0, 0.0, gap=0.05))) is None


def test_without_the_kernel_s_figures_the_stalls_of_the_loop_count():
    deaf = OwnTime(cpu_share=0.1, lag_mean=0.003, lag_max=0.009, late_by_stalls=0.006)
    said = client_objection(of(deaf, request(0, 0.0)))
    assert said == "it read 6.00 ms late on average, with 5.00 ms between two chunks; give the client a core of its own"


def test_one_long_stall_voids_the_pass_however_short_the_mean_lateness():
    """All slots may end in it, so it can cost its whole length."""
    said = client_objection(of(replace(FREE, lag_max=0.03), request(0, 0.0)))
    assert said.startswith("it stood still for 0.030 s, 3.0% of the pass (limit 1.0%)")


def test_a_matrix_with_a_larger_minimum_effect_allows_a_larger_loss():
    assert client_objection(of(replace(FREE, lag_max=0.03), request(0, 0.0)), largest_loss=0.05) is None


def test_slots_that_stand_idle_void_the_pass():
    late = [request(0, 0.0), request(0, 1.03), request(0, 2.06)]
    assert "its slots stood idle or unread for 2.0% of their time (limit 1.0%)" in client_objection(of(FREE, *late))


def test_a_full_core_voids_the_pass():
    said = client_objection(of(replace(FREE, cpu_share=0.95), request(0, 0.0)))
    assert said.startswith("it used 95% of a core (limit 90%)")


def test_a_server_faster_than_any_model_is_not_asked_for_shares():
    instant = [request(0, 0.0, gap=1e-5), request(0, 0.004, gap=1e-5)]
    assert client_objection(of(replace(FREE, wait_mean=0.001), *instant)) is None


def test_turnaround_and_lateness_make_the_lost_load():
    found = client_health([request(0, 0.0), request(0, 1.01)], replace(FREE, wait_mean=0.005))
    assert found.turnaround_mean_seconds == found.turnaround_max_seconds == pytest.approx(0.01)
    assert found.load_lost_share == pytest.approx((0.01 + 2 * 0.005) / 2.01)


def seen(work: float) -> OwnTime:
    async def watch() -> OwnTime:
        probe = HealthProbe(asyncio.get_running_loop())
        await asyncio.sleep(2 * health.PROBE_SECONDS)
        end = time.perf_counter() + work
        while time.perf_counter() < end:
            pass
        return probe.stop()

    return asyncio.run(watch())


def test_a_loop_that_stood_still_shows_its_lag_even_at_the_very_end():
    assert seen(0.3).lag_max > 0.2


def test_lateness_at_a_random_moment_weighs_a_stall_by_its_length():
    found = seen(0.3)
    # A stall of 0.3 s in a pass of 0.4 s: 0.3 ** 2 / 2 / 0.4, or more on a busy machine.
    assert found.late_by_stalls > 0.05


def test_work_shows_in_the_cpu_share():
    idle, busy = seen(0.0), seen(0.3)
    assert busy.cpu_share > idle.cpu_share


def test_waiting_for_a_core_is_read_from_the_kernel(tmp_path, monkeypatch):
    table = tmp_path / "schedstat"
    monkeypatch.setattr(health, "SCHEDSTAT", table)
    table.write_text("100 2000000 10\n")

    async def watch() -> OwnTime:
        probe = HealthProbe(asyncio.get_running_loop())
        table.write_text("100 8000000 13\n")
        return probe.stop()

    found = asyncio.run(watch())
    assert found.wait_mean == pytest.approx(0.002)
    assert found.waiting_share > 0


@pytest.mark.parametrize("content", [None, "", "1 2\n"])
def test_a_kernel_without_those_figures_is_no_error(tmp_path, monkeypatch, content):
    table = tmp_path / "schedstat"
    if content is not None:
        table.write_text(content)
    monkeypatch.setattr(health, "SCHEDSTAT", table)
    found = seen(0.0)
    assert (found.waiting_share, found.wait_mean) == (None, None)
