"""The scheduler's lines about decoding, in the spellings of its versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtpgate.server.decode_lines import DecodeBatch, read_decode_lines

LINES = {
    "0.4.3": "[2025-02-20 10:00:00 TP0] Decode batch. #running-req: 3, #token: 900, token usage: 0.01, "
    "gen throughput (token/s): 55.10, #queue-req: 2",
    "0.4.9": "[2025-07-02 10:00:00 TP0] Decode batch. #running-req: 3, #token: 900, token usage: 0.01, "
    "accept len: 2.10, cuda graph: True, gen throughput (token/s): 55.10, #queue-req: 2,",
    "0.5.4": "[2025-10-27 10:00:00 TP0] Decode batch [40], #running-req: 3, #token: 900, token usage: 0.01, "
    "cuda graph: True, gen throughput (token/s): 55.10, #queue-req: 2, ",
    "0.5.23": "[2026-12-01 15:40:04] Decode batch, #running-req: 3, #token: 11, token usage: 0.00, accept len: 1.80, "
    "accept rate: 0.80, cpu graph: True, gen throughput (token/s): 13.09, #queue-req: 2",
}


def log(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("version", LINES)
def test_each_versions_line_is_read(tmp_path: Path, version: str) -> None:
    (batch,) = read_decode_lines(log(tmp_path, LINES[version])).batches
    assert batch == DecodeBatch(running=3, graph=None if version == "0.4.3" else True, queued=2)


def test_eager_and_retracting_are_seen(tmp_path: Path) -> None:
    retracting = "[2026-12-01 15:40:05] KV cache pool is full. Retract requests. #retracted_reqs: 2, "
    old = "[2025-02-20 10:00:00 TP0] Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.1 -> 0.2"
    path = log(tmp_path, LINES["0.5.23"].replace("True", "False"), retracting + "#new_token_ratio: 0.5 -> 0.9", old)
    found = read_decode_lines(path)
    assert [batch.graph for batch in found.batches] == [False]
    assert found.retracted == 3


def test_only_what_came_after_the_begin_counts(tmp_path: Path) -> None:
    path = log(tmp_path, LINES["0.5.4"], "Prefill batch, #new-seq: 1, #running-req: 4, #queue-req: 9")
    begin = path.stat().st_size
    with path.open("a") as file:
        file.write(LINES["0.4.9"] + "\n")
    assert len(read_decode_lines(path, begin).batches) == 1


def test_a_log_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert read_decode_lines(tmp_path / "none.log").batches == ()
