"""What a family of processes did between two looks at it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from mtpgate.server.activity import ActivityMeter, Reading, Sampler, is_compiler, read_process

MAIN = (10, 1.0)
CHILD = (11, 2.0)
GRANDCHILD = (12, 3.0)


@pytest.fixture
def meter() -> ActivityMeter:
    return ActivityMeter()


def test_first_look_says_nothing(meter: ActivityMeter) -> None:
    assert meter.feed({MAIN: Reading("python", 50.0)}, 1.0) is None


def test_cpu_time_is_told_by_name_and_by_the_busiest(meter: ActivityMeter) -> None:
    meter.feed({MAIN: Reading("main", 50.0), CHILD: Reading("rank", 7.0)}, 1.0)
    activity = meter.feed({MAIN: Reading("main", 50.5), CHILD: Reading("rank", 8.5)}, 3.0)
    assert activity is not None
    assert activity.cpu == {"main": 0.5, "rank": 1.5}
    assert (activity.cpu_seconds, activity.most_cores, activity.processes) == (2.0, 0.75, 2)


def total(meter: ActivityMeter, *looks: dict[tuple[int, float], Reading]) -> list[float]:
    found = [meter.feed(look, float(index)) for index, look in enumerate(looks)]
    return [round(activity.cpu_seconds, 3) for activity in found if activity]


def test_process_that_ends_and_is_reaped_counts_once(meter: ActivityMeter) -> None:
    used = total(
        meter,
        {MAIN: Reading("m", 1.0), CHILD: Reading("c", 5.0)},
        {MAIN: Reading("m", 1.0, reaped_cpu=5.2)},  # 0.2 s after the last look at it
        {MAIN: Reading("m", 1.1, reaped_cpu=5.2)},
    )
    assert used == [0.2, 0.1]


def test_process_that_is_reaped_later_counts_once(meter: ActivityMeter) -> None:
    used = total(
        meter,
        {MAIN: Reading("m", 1.0), CHILD: Reading("c", 5.0)},
        {MAIN: Reading("m", 1.0)},
        {MAIN: Reading("m", 1.0, reaped_cpu=5.2)},
    )
    assert used == [0.0, 0.2]


def test_nothing_counts_backwards_where_nobody_reaps(meter: ActivityMeter) -> None:
    used = total(meter, {MAIN: Reading("m", 1.0), CHILD: Reading("c", 5.0)}, {MAIN: Reading("m", 1.25)})
    assert used == [0.25]


def test_grandchildren_that_end_together_count_once(meter: ActivityMeter) -> None:
    used = total(
        meter,
        {MAIN: Reading("m", 1.0), CHILD: Reading("c", 2.0), GRANDCHILD: Reading("g", 3.0)},
        {MAIN: Reading("m", 1.0, reaped_cpu=5.0)},
    )
    assert used == [0.0]


def test_children_that_came_and_went_unseen_count(meter: ActivityMeter) -> None:
    meter.feed({MAIN: Reading("m", 1.0)}, 0.0)
    activity = meter.feed({MAIN: Reading("m", 1.0, reaped_cpu=0.75)}, 1.0)
    assert activity is not None
    assert activity.cpu == {"m": 0.0, "ended children": 0.75}
    assert activity.most_cores == 0.75


def test_bytes_of_an_ended_process_count_once(meter: ActivityMeter) -> None:
    meter.feed({MAIN: Reading("m", 1.0, moved_bytes=10), CHILD: Reading("c", 1.0, moved_bytes=500)}, 0.0)
    activity = meter.feed({MAIN: Reading("m", 1.0, moved_bytes=530)}, 1.0)
    assert activity is not None
    assert activity.moved_bytes == 20


def test_same_pid_again_is_another_process(meter: ActivityMeter) -> None:
    assert total(meter, {(10, 1.0): Reading("m", 9.0)}, {(10, 8.0): Reading("m", 0.5)}) == [0.5]


def compilers(before: Reading | None, after: Reading) -> tuple[str, ...]:
    meter = ActivityMeter()
    meter.feed({MAIN: Reading("m", 1.0)} | ({CHILD: before} if before else {}), 0.0)
    activity = meter.feed({MAIN: Reading("m", 1.0), CHILD: after}, 1.0)
    assert activity is not None
    return activity.compilers


def test_compiler_counts_if_it_works_or_was_started() -> None:
    waiting = Reading("cicc", 1.0, compiler=True)
    assert compilers(waiting, Reading("cicc", 1.5, compiler=True)) == ("cicc",)
    assert compilers(None, Reading("cicc", 0.0, compiler=True)) == ("cicc",)
    assert compilers(waiting, waiting) == ()
    assert compilers(None, Reading("python", 1.0)) == ()


@pytest.mark.parametrize(
    "name",
    [
        "nvcc",
        "cicc",
        "ptxas",
        "cudafe++",
        "ninja",
        "cc1plus",
        "gcc-12",
        "x86_64-linux-gnu-g++-12",
        "clang++-17",
        "ld.lld",
    ],
)
def test_compilers_are_known_by_name(name: str) -> None:
    assert is_compiler(name)


@pytest.mark.parametrize("name", ["python3", "sglang::scheduler_TP0", "bash", "asd", "nvidia-smi", "ldconfig", "ccc"])
def test_others_are_no_compilers(name: str) -> None:
    assert not is_compiler(name)


@contextlib.contextmanager
def running(code: str, *words: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{code}", *words], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_real_process_is_read() -> None:
    with running("import time\nwhile True: open('/dev/zero', 'rb').read(1 << 20)") as pid:
        sampler = Sampler(lambda: [pid, 2**22 + 1])
        assert sampler.sample(time.monotonic()) is None
        until = time.monotonic() + 20.0
        moved, cpu = 0, 0.0
        while time.monotonic() < until and (moved < 10 << 20 or cpu < 0.05):
            activity = sampler.sample(time.monotonic())
            assert activity is not None
            moved, cpu = moved + activity.moved_bytes, cpu + activity.cpu_seconds
        assert moved >= 10 << 20
        assert cpu >= 0.05
        assert activity.processes == 1


def test_worker_of_torch_compile_is_a_compiler() -> None:
    with running("import time; time.sleep(100)", "/x/torch/_inductor/compile_worker/__main__.py") as pid:
        found = read_process(pid)
    assert found is not None
    assert found[1].compiler


def test_plain_python_is_no_compiler_and_known_by_its_start() -> None:
    found = read_process(os.getpid())
    assert found is not None
    assert found[0] == (os.getpid(), psutil.Process().create_time())
    assert not found[1].compiler


def test_process_that_has_gone_is_left_out() -> None:
    with running("pass") as pid:
        pass
    assert read_process(pid) is None


def test_looks_are_a_second_or_two_apart() -> None:
    sampler = Sampler(lambda: [os.getpid()])
    assert sampler.due(0.0)
    sampler.sample(100.0)
    assert not sampler.due(100.5)
    assert sampler.due(102.0)
