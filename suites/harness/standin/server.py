"""A small process that looks like an SGLang server: its flags, log lines and HTTP interface, and none of its work.

``python server.py --model-path M --host H --port P [SGLang's flags] [--standin JSON]``; what it can do wrong is
described in ``behaviour.py``. Standard library only, starts in a tenth of a second.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from behaviour import Behaviour, Death
from hanging import hang
from interface import start_serving
from loglines import Launch, Script, log
from memory import Arithmetic

PR_SET_PDEATHSIG = 1


def main() -> None:
    arguments = parse_arguments(sys.argv[1:])
    behaviour: Behaviour = arguments.pop("behaviour")
    StandIn(arguments, behaviour).run()


def parse_arguments(argv: list[str]) -> dict[str, Any]:
    """SGLang's flags under ``ServerArgs`` names; unknown ones are kept as they are."""
    parser = argparse.ArgumentParser(prog="launch_server.py", allow_abbrev=False)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--tp-size", "--tp", type=int, default=1)
    parser.add_argument("--mem-fraction-static", type=float)
    parser.add_argument("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs", type=int)
    parser.add_argument("--speculative-algorithm")
    parser.add_argument("--speculative-num-steps", type=int)
    parser.add_argument("--speculative-eagle-topk", type=int)
    parser.add_argument("--speculative-num-draft-tokens", type=int)
    parser.add_argument("--standin", default=os.environ.get("MTPGATE_STANDIN"))
    known, unknown = parser.parse_known_args(argv)
    arguments = vars(known)
    try:
        behaviour = Behaviour.parse(arguments.pop("standin"))
    except (ValueError, TypeError) as error:
        parser.error(str(error))
    name = None
    for word in unknown:
        if word.startswith("--"):
            name = word[2:].split("=")[0].replace("-", "_")
            arguments[name] = _value(word.partition("=")[2]) if "=" in word else True
        elif name:
            arguments[name] = _value(word)
    return {**arguments, "behaviour": behaviour}


def _value(word: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


class StandIn:
    """One life of the stand-in."""

    def __init__(self, arguments: dict[str, Any], behaviour: Behaviour) -> None:
        self.arguments = arguments
        self.behaviour = behaviour
        speculative = bool(arguments["speculative_algorithm"])
        # As SGLang 0.5.23 does at topk 1, silently but for a warning.
        if speculative and arguments["speculative_eagle_topk"] == 1:
            arguments["speculative_num_draft_tokens"] = arguments["speculative_num_steps"] + 1
        version = tuple(int(part) for part in behaviour.version.split(".post")[0].split("."))
        size = arguments["tp_size"]
        self.launch = Launch(
            version=version,
            gpu=behaviour.device == "gpu",
            ranks=tuple(f"TP{rank}" for rank in range(size)) if size > 1 else ("",),
            speculative=speculative,
            num_steps=arguments["speculative_num_steps"] or 0,
            arguments=arguments,
            host=arguments["host"],
            port=arguments["port"],
            memory=Arithmetic(behaviour.memory, arguments) if behaviour.memory is not None else None,
        )
        self.requests = 0
        self.counting = threading.Lock()
        self.in_flight = 0
        self.aborted: set[object] = set()
        self.prompts: set[tuple[int, ...]] = set()

    def run(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN if self.behaviour.ignore_sigterm else leave)
        for _ in range(self.behaviour.children):
            fork_child(daemonize=False)
        for _ in range(self.behaviour.orphans):
            fork_child(daemonize=True)
        for step, write in Script(self.launch).steps():
            phase = step.split("/")[0]
            # The pool is sized before a line tells of it; a capture is begun.
            if step == "kv_pool":
                self.maybe_run_out(phase)
            write()
            if step.startswith("capture_") and step.endswith("/more"):
                self.maybe_run_out(phase)
            if self.behaviour.binary_garbage:
                os.write(2, b"\x00\xff\xfe\x80 garbage \xc3\r\r\x1b[31m" + b"\xf0" * 3000 + b"\n")
            if step == self.behaviour.hang:
                hang(self.behaviour.hang_how, self.behaviour.hang_seconds)
            if not step.endswith("/end"):
                self.maybe_die(phase)
            time.sleep(self.behaviour.phase_seconds)
        server = start_serving(self)
        log(f"INFO:     Started server process [{os.getpid()}]")
        log("INFO:     Waiting for application startup.")
        log("INFO:     Application startup complete.")
        log(f"INFO:     Uvicorn running on http://{self.launch.host}:{self.launch.port} (Press CTRL+C to quit)")
        log("The server is fired up and ready to roll!")
        server.serve_forever()

    def maybe_run_out(self, phase: str) -> None:
        shortage = self.launch.memory.shortage(phase) if self.launch.memory is not None else None
        if shortage is not None:
            die(Death(phase, "memory"), self.launch, shortage)

    def maybe_die(self, phase: str) -> None:
        death = self.behaviour.die
        if death is not None and death.phase == phase and phase != "serving":
            die(death, self.launch)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Counts a request that is answered, for as long as it is."""
        with self.counting:
            self.in_flight += 1
        try:
            yield
        finally:
            with self.counting:
                self.in_flight -= 1

    def seen_before(self, prompt: list[int]) -> bool:
        with self.counting:
            seen = tuple(prompt) in self.prompts
            self.prompts.add(tuple(prompt))
            return seen

    def maybe_die_of(self, kind: str) -> None:
        if kind in self.behaviour.dies_of:
            die(Death("serving"), self.launch, "IndexError: index out of range in self")

    def count_request(self) -> None:
        """Called at the begin of every answer; may be the last thing this process does."""
        with self.counting:
            self.requests += 1
            death = self.behaviour.die
            if death is not None and death.phase == "serving" and self.requests >= death.after_requests:
                die(death, self.launch)


def leave(*_: object) -> NoReturn:
    log("SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
    os._exit(0)


def fork_child(*, daemonize: bool) -> None:
    """A child that sleeps: one that dies with its parent, as SGLang's schedulers do, or a daemon that does not."""
    parent = os.getpid()
    child = os.fork()
    if child != 0:
        if daemonize:
            os.waitpid(child, 0)
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN if daemonize else signal.SIG_DFL)
    if daemonize:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
    else:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(0)  # The parent died before the line above could take effect.
    while True:
        signal.pause()


def die(death: Death, launch: Launch, error: str | None = None) -> NoReturn:
    """The end of the process, with the lines that SGLang writes before it; ``error`` instead of the usual one."""
    rank = death.rank if death.rank is not None else launch.ranks[0]
    if death.how == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if death.how == "exit":
        os._exit(death.code)
    error = error or {
        "oom": (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.50 GiB. GPU 3 has a total capacity of "
            "94.97 GiB of which 2.30 GiB is free. Including non-PyTorch memory, this process has 92.67 GiB memory in "
            "use. Of the allocated memory 67.10 GiB is allocated by PyTorch, and 1.99 GiB is reserved by PyTorch but "
            "unallocated."
        ),
        "not_enough_memory": (
            "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.3. Raise "
            "--mem-fraction-static above 0.480 (minimum viable = 1 - available/pre = 0.4791)."
        ),
    }.get(death.how, "RuntimeError: the stand-in was told to fail here")
    if launch.version >= (0, 5, 4) and death.phase == "serving":
        log("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")
    else:
        log("Received sigquit from a child process. It usually means the child failed.")
    log("Scheduler hit an exception: Traceback (most recent call last):", rank)
    print('  File "sglang/srt/managers/scheduler.py", line 4325, in run_scheduler_process', file=sys.stderr)
    print(f"    scheduler = Scheduler(\n{error}\n", file=sys.stderr, flush=True)
    # The real server's main process kills its whole tree, itself included.
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


if __name__ == "__main__":
    main()
