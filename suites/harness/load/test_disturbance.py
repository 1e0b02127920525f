"""Which conditions spoil a measurement, on a GPU and on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mtpgate.gpu.watch import GpuSample
from mtpgate.load.conditions import Conditions, HostSample, Judged, OtherProcess, figures
from mtpgate.load.disturbance import Asked, judge_conditions
from mtpgate.load.measurement import Repeat, RequestRecord
from mtpgate.load.spoiled import disturbed, in_short, machine_is_at_fault, under
from mtpgate.load.storage import from_json, to_json
from mtpgate.server.decode_lines import DecodeBatch, DecodeLines
from suites.harness.judge.synthetic import measurement

GPU = Asked(16, on_gpu=True, has_graphs=True, graph_max_bs=32, max_running_requests=48)
CPU = Asked(16, max_running_requests=16)
SERVER = frozenset({100, 101})
QUIET = HostSample(0.3, 0.0, 2100.0)
CANARY = {"GPU 0": {"matmul_tflops": 600.0, "copy_gib_s": 3000.0}}
GRAPHS = DecodeLines((DecodeBatch(16, True, 0),) * 20)


def look(**changes: object) -> GpuSample:
    usual = GpuSample(0, 1965, 2619, 600.0, 64, 0x4, 3.0, frozenset({100}), {100: 90})
    return replace(usual, **changes)


def conditions(**changes: object) -> Conditions:
    """Of a quiet load on one GPU: 40 looks."""
    usual = Conditions(
        seconds=20.0,
        gpus=((look(),),) * 40,
        host=(QUIET,) * 40,
        cores=16,
        server_pids=SERVER,
        canary_before=CANARY,
        canary_after=CANARY,
        decode=GRAPHS,
    )
    return replace(usual, **changes)


def looks(some: GpuSample, count: int) -> tuple[tuple[GpuSample, ...], ...]:
    """``count`` of 40 looks are ``some``, the first ones are not."""
    return ((look(),),) * (40 - count) + ((some,),) * count


def batches(count: int, some: DecodeBatch) -> DecodeLines:
    return DecodeLines((DecodeBatch(16, True, 0),) * (20 - count) + (some,) * count)


def void_of(found: Conditions, asked: Asked = GPU) -> str:
    judged = judge_conditions(found, asked)
    return "; ".join((*judged.machine, *judged.server))


def test_a_quiet_load_is_not_void() -> None:
    assert judge_conditions(conditions(), GPU) == Judged((), (), ("GPU 0 worked at its power limit in 40 of 40 looks",))


@pytest.mark.parametrize(
    ("reason", "name"),
    [(0x8, "HwSlowdown"), (0x20, "SwThermal"), (0x40, "HwThermal"), (0x80, "HwPowerBrake")],
)
def test_a_gpu_that_heat_or_power_slows_is_void_and_its_clocks_are_told(reason: int, name: str) -> None:
    said = void_of(conditions(gpus=looks(look(clocks_event_reasons=reason, clock_sm_mhz=1580), 10)))
    assert f"GPU 0 throttled in 10 of 40 looks ({name}" in said
    assert "SM clock 1580 to 1965 MHz" in said


@pytest.mark.parametrize("count", [1, 2])
def test_a_protection_that_is_seen_in_a_look_of_twenty_is_none(count: int) -> None:
    assert void_of(conditions(gpus=looks(look(clocks_event_reasons=0x40), count))) == ""


@pytest.mark.parametrize("reason", [0x0, 0x1, 0x2, 0x4, 0x10, 0x100])
def test_other_reasons_are_the_usual_business_of_a_board(reason: int) -> None:
    assert void_of(conditions(gpus=looks(look(clocks_event_reasons=reason), 40))) == ""


def test_a_process_that_computes_beside_the_server_is_void() -> None:
    found = conditions(gpus=((look(processes=frozenset({100, 55}), sm_util={100: 60, 55: 40}),),) * 40)
    assert void_of(found) == "process 55 computed on GPU 0 during the load (up to 40 % of its SMs)"


def test_the_canary_before_the_load_is_no_other_process() -> None:
    canary = look(sm_util={100: 0, 4242: 99})
    assert void_of(conditions(gpus=((canary,),) * 2 + ((look(),),) * 38)) == ""
    assert "process 4242" in void_of(conditions(gpus=((canary,),) * 3 + ((look(),),) * 37))


def test_a_process_that_holds_memory_but_rests_is_not() -> None:
    found = conditions(gpus=((look(processes=frozenset({100, 55}), sm_util={100: 60, 55: 1}),),) * 40)
    assert void_of(found) == ""


def test_a_process_that_comes_during_the_load_is_void_even_where_utilization_is_not_told() -> None:
    found = conditions(gpus=looks(look(processes=frozenset({100, 55}), sm_util={}), 5))
    assert "process 55 computed on GPU 0" in void_of(found)


def test_process_ids_of_another_namespace_are_the_servers_if_they_were_there_before() -> None:
    there = look(processes=frozenset({9000, 9001}), sm_util={9000: 90, 9001: 80})
    assert void_of(conditions(gpus=((there,),) * 40)) == ""
    came = replace(there, processes=frozenset({9000, 9001, 9500}))
    assert "process 9500" in void_of(conditions(gpus=((there,),) * 20 + ((came,),) * 20))


@pytest.mark.parametrize(("after", "void"), [(539.0, True), (545.0, False), (661.0, True)])
def test_a_gpu_that_multiplies_otherwise_after_the_load_is_void(after: float, void: bool) -> None:
    changed = {"GPU 0": {"matmul_tflops": after, "copy_gib_s": 3000.0}}
    assert ("canary matmul_tflops 600.0 before" in void_of(conditions(canary_after=changed))) is void


def test_a_canary_that_could_not_be_run_is_told_and_no_fault() -> None:
    judged = judge_conditions(conditions(canary_before={}, canary_after={}, canary_note="GPU 0 has 0.4 GiB free"), GPU)
    assert not judged.machine
    assert "no canary: GPU 0 has 0.4 GiB free" in judged.remarks


def test_a_host_without_a_core_to_spare_is_void_on_gpus_and_a_remark_on_a_cpu() -> None:
    burner = (OtherProcess(7, "cc1plus", 11.5),)
    found = conditions(host=(HostSample(0.95, 0.0, None),) * 40, other_cores=12.0, others=burner)
    assert void_of(found) == "the host had no core to spare: 95% of 16 busy (cc1plus (pid 7) 11.5)"
    on_cpu = judge_conditions(replace(found, gpus=()), CPU)
    assert not on_cpu.machine
    assert on_cpu.remarks == ("other processes used 12.0 of 16 cores (cc1plus (pid 7) 11.5)",)


def test_stolen_time_is_void_on_gpus_and_a_remark_on_a_cpu() -> None:
    found = conditions(gpus=(), canary_before={}, host=(HostSample(0.5, 0.1, None),) * 40)
    assert void_of(found) == "the hypervisor took 10% of the CPU time"
    assert judge_conditions(found, CPU) == Judged((), (), ("the hypervisor took 10% of the CPU time",))


def test_a_cpu_canary_that_halves_is_a_remark() -> None:
    before, after = {"CPU": {"copy_gib_s": 22.0}}, {"CPU": {"copy_gib_s": 10.0}}
    judged = judge_conditions(conditions(gpus=(), canary_before=before, canary_after=after), CPU)
    assert not judged.machine
    assert judged.remarks[0].startswith("CPU changed during the load: canary copy_gib_s 22.0 before, 10.0 after (-55%")


def test_eager_decode_is_the_servers_fault_where_graphs_were_captured() -> None:
    judged = judge_conditions(conditions(decode=batches(3, DecodeBatch(16, False, 0))), GPU)
    assert judged.server == (
        "SGLang decoded eagerly in 3 of 20 decode lines (first with 16 running) though it has captured graphs",
    )
    assert not judged.machine


def test_eager_decode_without_graphs_or_above_their_limit_is_as_designed() -> None:
    eager = batches(20, DecodeBatch(16, False, 0))
    assert void_of(conditions(decode=eager), replace(GPU, has_graphs=False)) == ""
    small = replace(GPU, graph_max_bs=8)
    assert void_of(conditions(decode=eager), small) == ""
    assert (
        "batches above 8 decode eagerly: the cell's graphs end there"
        in judge_conditions(conditions(decode=eager), small).remarks
    )


def test_retractions_are_the_servers_fault_on_any_machine() -> None:
    found = conditions(decode=DecodeLines(retracted=2))
    assert "retracted requests (2 times)" in void_of(found)
    assert "retracted requests (2 times)" in void_of(replace(found, gpus=()), CPU)


def test_retractions_that_only_the_answers_tell_count_too() -> None:
    record = RequestRecord("prose-1", 0, 0.0, (), 1.0, 4, 8, "", {"num_retractions": 1})
    one = Repeat((record, replace(record, meta={})), 0.0, 1.0, 100.0, (), (), None)
    measured = under(replace(measurement(100.0), repeats=(one,)), conditions(), GPU)
    assert "retracted requests (1 times)" in measured.void


def test_a_load_without_decode_lines_says_that_eager_steps_are_not_seen() -> None:
    judged = judge_conditions(conditions(decode=DecodeLines()), GPU)
    assert not judged.server
    assert any("eager steps would not be seen" in remark for remark in judged.remarks)


@pytest.mark.parametrize(("count", "void"), [(2, False), (3, True)])
def test_requests_that_wait_though_they_may_run_are_void(count: int, void: bool) -> None:
    found = conditions(decode=batches(count, DecodeBatch(13, True, 3)))
    assert ("requests waited in 3 of 20 decode lines (up to 3) though 48 may run" in void_of(found)) is void


def test_requests_that_wait_because_more_were_sent_than_may_run_are_as_designed() -> None:
    found = conditions(decode=batches(20, DecodeBatch(8, True, 8)))
    assert void_of(found, replace(GPU, max_running_requests=8)) == ""
    assert void_of(found, replace(GPU, max_running_requests=None)) == ""


def test_a_spoiled_measurement_is_void_with_its_reason_and_says_who_is_at_fault() -> None:
    hot = conditions(gpus=looks(look(clocks_event_reasons=0x40), 40))
    measured = under(measurement(100.0), hot, GPU)
    assert measured.void.startswith("disturbed: GPU 0 throttled in 40 of 40")
    assert disturbed(measured) and machine_is_at_fault(measured)
    eager = under(measurement(100.0), conditions(decode=batches(3, DecodeBatch(16, False, 0))), GPU)
    assert disturbed(eager) and not machine_is_at_fault(eager)


def test_a_measurement_that_is_void_for_another_reason_keeps_that_reason() -> None:
    hot = conditions(gpus=looks(look(clocks_event_reasons=0x40), 40))
    measured = under(measurement(100.0, void="request 3 failed"), hot, GPU)
    assert measured.void == "request 3 failed"
    assert not disturbed(measured)


def test_conditions_are_kept_with_the_measurement_and_read_back() -> None:
    measured = under(measurement(100.0), conditions(), GPU)
    machine = from_json(to_json(measured)).conditions["machine"]
    assert machine["gpus"][0]["clock_sm_mhz"] == [1965] * 40
    assert machine["decode"] == {"lines": 20, "eager": 0, "queued": 0, "retracted": 0}
    assert in_short(measured) == (
        "GPU 0 worked at its power limit in 40 of 40 looks; SM clock 1965 MHz (1965 to 1965); 600 W a GPU; "
        "up to 64 °C; CPU 30% busy, 0.0% stolen"
    )
    assert in_short(measurement(100.0)) == ""


def test_the_figures_to_compare_launches_by_are_medians_and_the_slowest_canary() -> None:
    two = {"GPU 0": {"matmul_tflops": 600.0}, "GPU 1": {"matmul_tflops": 500.0}}
    found = figures(conditions(gpus=looks(look(clock_sm_mhz=1500, power_watts=None), 10), canary_before=two))
    assert (found["clock_sm_mhz"], found["power_watts"], found["canary_matmul_tflops"]) == (1965, 600, 500)
    assert "clock_sm_mhz" not in figures(conditions(gpus=()))
