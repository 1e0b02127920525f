"""Probes of a stand-in process that does one thing wrong: over HTTP, in the real server's forms."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mtpgate.checks.facts import look
from mtpgate.checks.probes import DEADLY, PROBES, ProbeResult, run_probe
from mtpgate.server.client import ServerError
from mtpgate.server.launch import RunningServer

Start = Callable[..., RunningServer]


def probe(server: RunningServer, name: str, **facts: Any) -> ProbeResult:
    with server.client() as client:
        known = look(client, server.server_info)
        return run_probe(name, client, replace(known, idle_seconds=0.3, **facts))


def test_a_healthy_server_passes_every_probe(start: Start, eagle: tuple[str, ...]) -> None:
    server = start(flags=(*eagle, "--dtype", "float32"))
    # Of a speculative server on a CPU there is no distribution to ask for.
    asked = [name for name in (*PROBES, *DEADLY) if name not in ("end-of-text", "sampling")]
    results = [probe(server, name, eos_id=0) for name in asked]
    assert [result.message for result in results if result.outcome != "passed"] == []


@pytest.mark.parametrize(
    ("fault", "name", "words"),
    [
        ("other_second", "same-prompt-twice", "the same prompt a second time.*expected tokens"),
        ("ignores_stop", "stop-string", "at 12 of 12 places .* and finish_reason 'stop', found .* and 'length'"),
        ("ignores_stop", "end-of-text", "expected finish_reason 'stop' after"),
        ("ignores_abort", "abort", "expected finish_reason 'abort', found 'length' after 236 of 236 tokens"),
        ("never_idle", "json-schema", "not idle 0.3 s after the last.*found 1 running requests, 32 KV tokens in use"),
        ("refuses_nothing", "refusals", r"temperature -1: expected a refusal \(HTTP 4xx\), got an answer"),
    ],
)
def test_a_fault_fails_its_probe_in_words(start: Start, fault: str, name: str, words: str) -> None:
    result = probe(start(probes=fault), name, context_length=300)
    assert result.outcome == "failed"
    assert re.search(words, result.message), result.message


def test_healthy_by_its_status_alone_is_not_well(start: Start) -> None:
    server = start(probes="deaf")
    with pytest.raises(ServerError, match=r"abort: POST .*/generate: HTTP 503"):
        probe(server, "abort")
    with server.client() as client:
        assert client.health()


@pytest.mark.parametrize(
    ("kind", "name"),
    [("empty", "empty-prompt"), ("beyond", "token-beyond-vocabulary"), ("negative", "negative-token")],
)
def test_a_deadly_input_leaves_no_answer(start: Start, wait_until: Any, kind: str, name: str) -> None:
    server = start(dies_of=[kind])
    with pytest.raises(ServerError, match=f"{name}: POST "):
        probe(server, name)
    wait_until(lambda: not server.alive(), "the server is dead")
