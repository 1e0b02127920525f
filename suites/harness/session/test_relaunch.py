"""A cell's server is replaced after a probe that killed it, and after nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures.launches import MOST_RELAUNCHES, Blocked, Launched, StartupFailed
from mtpgate.matrix.cell import Cell
from mtpgate.server.diagnose import diagnose_lines
from mtpgate.server.launch import StartupFailure
from mtpgate.server.timeline import Timeline

FAILURE = StartupFailure(
    cell_id="a-cell",
    diagnosis=diagnose_lines(["RuntimeError: no more"]),
    timeline=Timeline((), ()),
    exit_code=1,
    log_path=Path("server-2.log"),
    seconds=3.0,
    command=(),
)


def failing(number: int) -> Any:
    raise FAILURE


class Server:
    """A server that notes that it was stopped."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


def launched(again: Any) -> tuple[Launched, Any]:
    server: Any = Server()
    return Launched(Cell("a-cell", {}), server, None, again=again), server


def test_a_server_that_no_probe_killed_stays() -> None:
    cell, server = launched(lambda number: pytest.fail("launched again"))
    cell.revive()
    assert cell.server is server


def test_the_new_server_has_the_number_of_its_launch_and_the_old_one_is_ended() -> None:
    cell, server = launched(lambda number: f"launch {number}")
    cell.killed_by = "empty-prompt"
    cell.revive()
    cell.revive()
    assert cell.server == "launch 2"
    assert server.stopped


def test_a_cell_that_every_probe_kills_is_given_up() -> None:
    numbers: list[int] = []

    def again(number: int) -> Server:
        numbers.append(number)
        return Server()

    cell, _ = launched(again)
    for _ in range(MOST_RELAUNCHES + 2):
        cell.killed_by = "chat"
        cell.revive()
    assert numbers == [2, 3, 4]


def test_a_server_that_does_not_start_again_is_a_failure_of_the_cell() -> None:
    cell, _ = launched(failing)
    cell.killed_by = "chat"
    with pytest.raises(StartupFailed, match="a-cell did not start"):
        cell.revive()
    assert (cell.server, cell.failure) == (None, FAILURE)


def waiting(again: Any) -> Launched:
    """A launch that waits until somebody needs it."""
    return Launched(Cell("a-cell", {}), None, None, again=again)


class Living(Server):
    """A server that has not died."""

    def death(self) -> None:
        return None


def test_a_server_that_waited_is_launched_when_it_is_needed_and_once() -> None:
    numbers: list[int] = []

    def again(number: int) -> Any:
        numbers.append(number)
        return Living()

    cell = waiting(again)
    assert numbers == []
    assert cell.start() is cell.start()
    assert len(numbers) == 1


def test_a_server_that_waited_and_does_not_start_fails_the_first_that_asks_and_blocks_the_others() -> None:
    cell = waiting(failing)
    with pytest.raises(StartupFailed, match="a-cell did not start"):
        cell.start()
    with pytest.raises(Blocked, match="a-cell did not start again"):
        cell.start()
