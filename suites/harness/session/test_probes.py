"""Probes on the stand-in: what each fault of a server makes of them, and what a death leaves of the cell's tests."""

from __future__ import annotations

from typing import Any

import pytest

from mtpgate.checks.probes import DEADLY, PROBES
from mtpgate.report.records import CheckRecord

CELL = "nomtp"
ONLY = ("-m", "serving", "--cell", CELL)
DIES = {"dies_of": ["empty", "beyond", "negative"]}


def outcomes(ended: Any) -> dict[str, CheckRecord]:
    """By the probe, or by the test's name where it is none."""
    records = [record for row in ended.run.cells for record in row.checks]
    return {_name(record.test_id): record for record in records}


def _name(test_id: str) -> str:
    test, _, parameters = test_id.rpartition("::")[2].partition("[")
    return next((name for name in (*PROBES, *DEADLY) if parameters.endswith(f"{name}]")), test)


def states(ended: Any) -> dict[str, str]:
    return {name: record.state for name, record in outcomes(ended).items()}


def waiver(probe: str) -> dict[str, object]:
    message = "died while it was asked"
    return {"cell": CELL, "check": "serving", "test": probe, "reason": f"dies of {probe}", "message": message}


def test_a_healthy_server_passes_all_probes(suite: Any) -> None:
    ended = suite.run("-m", "serving")
    assert ended.code == 0, ended.output
    # On a CPU a verify step takes the best token: what is not asked has not passed.
    usual = {*PROBES, "test_still_answers", "test_stops_cleanly"} - {"sampling"}
    asked = {
        row.info.id: {_name(record.test_id) for record in row.checks if record.state == "passed"}
        for row in ended.run.cells
    }
    assert asked == {CELL: {*usual, "sampling", *DEADLY}, "eagle-s1-k1-d2": usual, "eagle-s3-k1-d4": usual}
    assert "token id -1 is refused (HTTP 400)" in outcomes(ended)["negative-token"].message


def test_probes_can_be_left_out(suite: Any) -> None:
    waivers = suite.waivers([waiver(probe) for probe in DEADLY])
    ended = suite.run("-m", "serving and not probe", "--cell", CELL, f"--known-bad={waivers}", behaviour=DIES)
    # What was not asked has not passed either, so its waiver is not called needless.
    assert ended.code == 0, ended.output
    assert states(ended) == {"test_still_answers": "passed", "test_stops_cleanly": "passed"}


def test_a_fault_fails_its_probe_and_no_other(suite: Any) -> None:
    ended = suite.run(*ONLY, behaviour={"probes": "ignores_stop"})
    found = outcomes(ended)
    assert {name for name, record in found.items() if record.state == "failed"} == {"stop-string", "end-of-text"}
    assert found["stop-string"].message.startswith("stop-string: stop strings at 12 of 12 places ")
    assert "Traceback" not in ended.output


def test_a_temperature_that_is_not_kept_to_fails_the_distribution_of_samples(suite: Any) -> None:
    ended = suite.run("-m", "serving", "-k", "sampling", "--cell", CELL, behaviour={"probes": "samples_hot"})
    record = outcomes(ended)["sampling"]
    assert record.state == "failed", ended.output
    assert "sampled tokens do not follow the model's distribution" in record.message


def test_sampling_is_not_asked_where_the_engine_does_not_sample(suite: Any) -> None:
    ended = suite.run("-m", "serving", "-k", "sampling", "--cell", "eagle-s1-k1-d2")
    record = outcomes(ended)["sampling"]
    assert (ended.code, record.state) == (pytest.ExitCode.OK, "skipped"), ended.output
    assert "not asked: with speculation SGLang's verify step on cpu takes the best token" in record.message


def test_a_server_that_a_probe_killed_is_launched_again_for_what_follows(suite: Any) -> None:
    """With a waiver for one of the deaths, which excuses no other."""
    waivers = suite.waivers([waiver("empty-prompt")])
    ended = suite.run(*ONLY, f"--known-bad={waivers}", behaviour=DIES)
    found = outcomes(ended)
    assert ended.code == 1
    assert {name: record.state for name, record in found.items() if record.state != "passed"} == {
        "empty-prompt": "known_bad",
        "token-beyond-vocabulary": "failed",
        "negative-token": "skipped",
        "test_stops_cleanly": "skipped",
    }
    assert "the server died while it was asked (empty-prompt): " in found["empty-prompt"].message
    assert "  server.log:" in found["empty-prompt"].message
    assert "  server-2.log:" in found["token-beyond-vocabulary"].message
    # Nothing is left to be asked after the last death but a stop, which is not worth a launch.
    logs = sorted(path.name for path in (ended.out / "cells" / CELL).glob("server*.log"))
    assert logs == ["server-2.log", "server.log"]
    # Nor is an input worth one that is looked up as the one which has just killed it.
    assert "token-beyond-vocabulary, which is alike, has killed the server" in found["negative-token"].message
    assert "token-beyond-vocabulary has killed the server" in found["test_stops_cleanly"].message
    assert not suite.processes()


def test_each_death_is_excused_by_its_own_waiver(suite: Any) -> None:
    waivers = suite.waivers([waiver(probe) for probe in ("empty-prompt", "negative-token")])
    ended = suite.run(*ONLY, f"--known-bad={waivers}", behaviour={"dies_of": ["empty", "negative"]})
    assert ended.code == 0, ended.output
    assert {name: state for name, state in states(ended).items() if state != "passed"} == {
        "empty-prompt": "known_bad",
        "negative-token": "known_bad",
        "test_stops_cleanly": "skipped",
    }
    page = (ended.out / "index.html").read_text()
    assert all(f"dies of {probe}" in page for probe in ("empty-prompt", "negative-token"))


def test_a_waiver_whose_death_does_not_happen_any_more_is_red(suite: Any) -> None:
    waivers = suite.waivers([waiver(probe) for probe in ("empty-prompt", "negative-token")])
    ended = suite.run(*ONLY, f"--known-bad={waivers}", behaviour={"dies_of": ["empty"]})
    assert states(ended)["test_stops_cleanly"] == "passed"
    record = outcomes(ended)["negative-token"]
    assert (ended.code, record.state) == (1, "fixed"), ended.output
    assert "dies of negative-token" in record.message
    assert "dies of empty-prompt" not in record.message
