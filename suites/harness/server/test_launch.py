"""From an argument list to a ready server, or to a failure that says what broke."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest

from mtpgate.errors import UsageError
from mtpgate.server import ports
from mtpgate.server.command import LaunchSpec
from mtpgate.server.launch import Progress, RunningServer, StartupFailure, launch

# A death is reported at most 5 s after it. The stand-in needs up to 1 s to start on a busy machine.
REPORT_SECONDS = 5.0

MakeSpec = Callable[..., LaunchSpec]
Start = Callable[..., RunningServer]

GPU_PHASES = [
    "preflight",
    "dist_init",
    "weight_load",
    "draft_load",
    "kv_pool",
    "capture_prefill",
    "capture_target_verify",
    "capture_draft_decode",
    "capture_draft_extend",
    "warmup",
]


@pytest.fixture
def foreign_server() -> Iterator[int]:
    """Somebody else's healthy server; its port."""

    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Healthy)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def test_ready_server_answers_and_knows_its_phases(start: Start, eagle: tuple[str, ...]) -> None:
    server = start(flags=eagle, device="gpu")
    assert server.alive()
    assert server.death() is None
    assert server.server_info["version"] == "0.5.23"
    assert [span.phase for span in server.timeline.phases if span.phase != "kv_pool"] == [
        *(phase for phase in GPU_PHASES if phase != "kv_pool"),
        "ready",
    ]
    with server.client() as client:
        assert client.health()


def test_stop_ends_all_and_says_how(start: Start) -> None:
    server = start(children=2)
    family = server.pids()
    report = server.stop()
    assert len(family) == 3
    assert not any(psutil.pid_exists(pid) for pid in family)
    assert report.exit_code == 0
    assert report.survivors == ()
    assert server.stop() is report
    assert server.death() is None


def test_progress_names_cell_and_phase(make_spec: MakeSpec) -> None:
    seen: list[Progress] = []
    with launch(make_spec(phase_seconds=0.2), on_progress=seen.append):
        pass
    assert {progress.cell_id for progress in seen} == {"a-cell"}
    assert len({progress.phase for progress in seen}) > 1
    assert [progress.total_seconds for progress in seen] == sorted(progress.total_seconds for progress in seen)


@pytest.mark.parametrize("phase", GPU_PHASES)
def test_death_in_each_phase_is_reported_with_that_phase(
    make_spec: MakeSpec, eagle: tuple[str, ...], phase: str
) -> None:
    spec = make_spec(flags=eagle, device="gpu", die={"phase": phase, "how": "exception"})
    with pytest.raises(StartupFailure) as failure:
        launch(spec)
    assert failure.value.diagnosis.phase == phase
    assert failure.value.exit_code == -signal.SIGKILL
    assert failure.value.seconds < REPORT_SECONDS
    assert "told to fail here" in failure.value.diagnosis.evidence[0].text
    assert str(spec.log_path) in str(failure.value)


def test_death_is_reported_soon_after_it(make_spec: MakeSpec) -> None:
    with pytest.raises(StartupFailure) as failure:
        launch(make_spec(die={"phase": "kv_pool", "how": "exit", "code": 3}))
    reported = time.time()
    assert failure.value.exit_code == 3
    assert reported - failure.value.log_path.stat().st_mtime < REPORT_SECONDS


@pytest.mark.parametrize(
    ("how", "phase", "kind", "direction"),
    [
        ("oom", "capture_target_verify", "oom_graph_capture", "lower"),
        # By 0.5.15 the draft is loaded before the pool: no fraction helps.
        ("oom", "draft_load", "oom_draft_weights", None),
        ("not_enough_memory", "kv_pool", "not_enough_memory", "raise"),
        ("sigkill", "weight_load", "child_died", None),
    ],
)
def test_cause_of_death_is_told(
    *, make_spec: MakeSpec, eagle: tuple[str, ...], how: str, phase: str, kind: str, direction: str | None
) -> None:
    with pytest.raises(StartupFailure) as failure:
        launch(make_spec(flags=eagle, device="gpu", die={"phase": phase, "how": how}))
    diagnosis = failure.value.diagnosis
    assert (diagnosis.phase, diagnosis.kind, diagnosis.advice.mem_fraction_static) == (phase, kind, direction)


def test_failing_rank_is_named(make_spec: MakeSpec) -> None:
    die = {"phase": "capture_target_decode", "how": "oom", "rank": "TP2"}
    with pytest.raises(StartupFailure) as failure:
        launch(make_spec(flags=("--tp-size", "4"), device="gpu", die=die))
    assert failure.value.diagnosis.rank == "TP2"
    numbers = failure.value.diagnosis.numbers
    told = {"tried": 7.5, "free": 2.3, "total": 94.97, "in_use": 92.67, "avail_before_load": 94.17}
    assert {name: numbers[name] for name in told} == told


def test_hang_ends_at_the_deadline_of_its_phase(make_spec: MakeSpec) -> None:
    began = time.monotonic()
    with pytest.raises(StartupFailure) as failure:
        launch(make_spec(hang="dist_init", deadlines={"dist_init": 0.5}, ignore_sigterm=True))
    assert (failure.value.diagnosis.phase, failure.value.diagnosis.kind) == ("dist_init", "hang")
    assert failure.value.exit_code is None
    assert time.monotonic() - began < 10.0


def test_server_that_never_gets_healthy_is_a_hang_in_ready(make_spec: MakeSpec) -> None:
    with pytest.raises(StartupFailure) as failure:
        launch(make_spec(unhealthy=True, deadlines={"ready": 0.5}))
    assert failure.value.diagnosis.kind == "hang"


def test_taken_port_is_refused_before_anything_starts(make_spec: MakeSpec, foreign_server: int) -> None:
    spec = make_spec(port=foreign_server)
    with pytest.raises(UsageError, match=f"port {foreign_server} on 127.0.0.1 is taken by .*pid {os.getpid()}"):
        launch(spec)
    assert not spec.log_path.exists()


def test_port_taken_during_the_start_ends_the_hanging_server(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, foreign_server: int
) -> None:
    monkeypatch.setattr(ports, "require_free", lambda *_: None)
    with pytest.raises(StartupFailure) as failure:
        launch(make_spec(port=foreign_server))
    assert (failure.value.diagnosis.phase, failure.value.diagnosis.kind) == ("warmup", "port_in_use")


def test_foreign_server_on_the_port_is_not_taken_for_ours(
    make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch, foreign_server: int
) -> None:
    # Ours claims to be ready but listens elsewhere; the foreign one answers /health and /server_info with 200.
    monkeypatch.setattr(ports, "require_free", lambda *_: None)
    spec = make_spec(deadlines={"ready": 0.5})
    elsewhere = LaunchSpec(
        cell_id=spec.cell_id,
        command=spec.command,
        port=foreign_server,
        log_path=spec.log_path,
        environment=spec.environment,
        deadlines=spec.deadlines,
    )
    with pytest.raises(StartupFailure) as failure:
        launch(elsewhere)
    assert failure.value.diagnosis.kind == "hang"


def test_command_that_does_not_exist_is_a_usage_error(make_spec: MakeSpec) -> None:
    spec = make_spec()
    missing = LaunchSpec(
        cell_id="a-cell", command=("/no/such/python", "-m", "sglang"), port=spec.port, log_path=spec.log_path
    )
    with pytest.raises(UsageError, match="/no/such/python"):
        launch(missing)


def test_binary_garbage_in_the_log_hides_nothing(start: Start) -> None:
    assert start(binary_garbage=True).timeline.reached("kv_pool")


def test_binary_garbage_before_a_death_hides_nothing(make_spec: MakeSpec) -> None:
    with pytest.raises(StartupFailure) as failure:
        launch(make_spec(binary_garbage=True, die={"phase": "kv_pool", "how": "not_enough_memory"}))
    assert failure.value.diagnosis.kind == "not_enough_memory"


def test_death_while_serving_is_diagnosed(start: Start) -> None:
    server = start(die={"phase": "serving", "how": "oom", "after_requests": 2})
    with server.client() as client, contextlib.suppress(Exception):
        client.generate(text="one", sampling_params={"max_new_tokens": 4})
        client.generate(text="two", sampling_params={"max_new_tokens": 4})
    assert server._process.wait(REPORT_SECONDS)
    death = server.death()
    assert death is not None
    assert (death.phase, death.kind) == ("serving", "oom_serving")


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_death_without_a_word_is_a_death(start: Start, ending: signal.Signals) -> None:
    server = start()
    os.kill(server.pid, ending)
    assert server._process.wait(REPORT_SECONDS)
    death = server.death()
    assert death is not None
    assert (death.phase, death.kind) == ("serving", "child_died")


def test_interrupt_during_the_start_leaves_nothing(make_spec: MakeSpec) -> None:
    spec = make_spec(hang="weight_load", orphans=1)

    def interrupt(progress: Progress) -> None:
        if progress.phase == "weight_load":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(spec, on_progress=interrupt)
    # The autouse fixture looks for processes; the port is free again too.
    assert ports.is_free(spec.host, spec.port)


def test_free_port_is_below_the_ephemeral_range_and_free() -> None:
    port = ports.free_port()
    assert ports.LOWEST_PORT <= port < ports._ephemeral_start()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        probe.listen()
        assert not ports.is_free("127.0.0.1", port)
        assert ports.listeners(port) == {os.getpid()}
