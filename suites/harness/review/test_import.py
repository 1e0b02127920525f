"""Result files of ``sglang.bench_serving`` become proposals, and baselines only by a review."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtpgate.errors import UsageError
from mtpgate.judge.baselines import BaselineStore, workload_key
from mtpgate.judge.imported import judged_by, pass_key
from mtpgate.judge.proposals import ProposalStore
from mtpgate.load.measurement import Repeat
from mtpgate.matrix.cell import Workload
from mtpgate.review.accept import accept, accept_proposed
from mtpgate.review.bench_serving import Told, propose, target
from mtpgate.review.diff import differences
from suites.harness.judge.synthetic import KEY, launch, measurement
from suites.harness.review.bench_files import INFO, LINE, MATRIX, written
from suites.harness.review.nights import EAGLE, Night

NOW = datetime.datetime(2026, 3, 2, 9, 0, tzinfo=datetime.UTC)


@pytest.fixture
def told(tmp_path: Path) -> Told:
    path = tmp_path / "small.yaml"
    path.write_text(MATRIX)
    matrix, cell = target(path, EAGLE)
    return Told(matrix, cell, hardware="1 x NVIDIA X, 80.00 GiB", driver="570.1")


def without(*names: str) -> dict[str, Any]:
    return LINE | {"server_info": {name: value for name, value in INFO.items() if name not in names}}


def test_a_run_is_proposed_under_its_key_and_marked_as_imported(tmp_path, told):
    (proposal,) = propose(written(tmp_path, LINE), told).proposals
    launch, key = proposal.launch, proposal.launch.key
    assert key.model_dump() == {
        "matrix": "small",
        "cell": EAGLE,
        "workload": "C16 in32 out32 requests16 pass",
        "sglang": "0.5.22",
        "model": "org/model abc",
        "hardware": "1 x NVIDIA X, 80.00 GiB",
        "gpus": 1,
        "attention_backend": "fa3",
        "engine": "sglang",
        "driver": "570.1",
    }
    assert (launch.tokens_per_second, launch.repeats, launch.ttft_p50_seconds) == (160.0, (160.0,), 0.1)
    assert launch.origin.imported_from.startswith("night.jsonl from line 1 sha256:")
    assert launch.accept_length is None
    assert any("accept length 1.80 is the server's average" in note for note in proposal.notes)


def test_runs_on_one_server_are_repeats_of_one_launch(tmp_path, told):
    other = LINE | {"output_throughput": 170.0, "server_info": INFO | {"random_seed": 8}}
    faster = LINE | {"output_throughput": 164.0}
    first, second = propose(written(tmp_path, LINE, faster, other), told).proposals
    assert (first.launch.repeats, first.launch.tokens_per_second) == ((160.0, 164.0), 162.0)
    assert first.launch.origin.imported_from.startswith("night.jsonl from line 1 ")
    assert (second.launch.repeats, second.launch.identity) != (first.launch.repeats, first.launch.identity)


@pytest.mark.parametrize(
    ("changes", "line", "option"),
    [
        ({"hardware": None}, LINE, "--hardware"),
        ({"driver": None}, LINE, "--driver"),
        ({}, without("attention_backend"), "--attention-backend"),
        ({}, without("version"), "--sglang"),
        ({}, LINE | {"input_lens": None}, "--input-tokens"),
        ({}, LINE | {"output_lens": [31] + [32] * 15}, "--output-tokens"),
    ],
)
def test_what_the_file_does_not_tell_is_asked_for_by_its_option(tmp_path, told, changes, line, option):
    with pytest.raises(UsageError, match=rf"give {option}$"):
        propose(written(tmp_path, line), replace(told, **changes))


def test_what_is_missing_is_asked_for_at_once(tmp_path, told):
    with pytest.raises(UsageError, match=r"give --attention-backend, --driver, --hardware, --sglang$"):
        propose(written(tmp_path, LINE | {"server_info": None}), replace(told, hardware=None, driver=None))


def test_an_option_fills_what_the_file_does_not_tell(tmp_path, told):
    line = LINE | {"server_info": None, "input_lens": None, "output_lens": None}
    options = {"sglang": "0.4.6", "attention_backend": "fa3", "input_tokens": 32, "output_tokens": 32}
    (proposal,) = propose(written(tmp_path, line), replace(told, **options)).proposals
    assert (proposal.launch.key.sglang, proposal.launch.origin.sglang_version) == ("0.4.6", "0.4.6")
    assert proposal.launch.key.workload.startswith("C16 in32 out32 ")


def test_a_run_on_a_server_that_was_launched_otherwise_is_refused(tmp_path, told):
    line = LINE | {"server_info": INFO | {"speculative_num_steps": 3}}
    with pytest.raises(UsageError, match=rf"not a launch of {EAGLE}: speculative_num_steps: asked for 1, .* runs 3"):
        propose(written(tmp_path, line), told)


def test_runs_that_cannot_be_compared_are_left_out_with_the_reason(tmp_path, told):
    found = propose(written(tmp_path, LINE, LINE | {"request_rate": 4.0}), told)
    assert len(found.proposals) == 1
    assert found.left_out[0].startswith(f"{tmp_path / 'night.jsonl'}, line 2: ")
    with pytest.raises(UsageError, match="no run in it can be compared"):
        propose(written(tmp_path, LINE | {"request_rate": 4.0}), told)


def test_a_cell_that_the_matrix_has_not_is_refused(tmp_path, told):
    with pytest.raises(UsageError, match=r"eagle-s9: no such cell in .*small\.yaml; nearest: "):
        target(tmp_path / "small.yaml", "eagle-s9")


def test_a_proposal_is_kept_once_and_waits_until_it_is_accepted(tmp_path, told):
    baselines, proposals = BaselineStore(tmp_path / "base"), ProposalStore(tmp_path / "base")
    found = propose(written(tmp_path, LINE), told).proposals
    assert len(proposals.add(found)) == 1
    assert proposals.add(found) == ()
    assert baselines.cells() == ()
    (launch,) = accept_proposed(proposals, ["eagle-*"], baselines, why=" checked ", who="Ada", now=NOW)
    assert baselines.launches("small", EAGLE) == (launch,)
    assert (launch.why, launch.origin.who, launch.origin.accepted) == ("checked", "Ada", NOW)
    assert launch.origin.imported_from
    assert proposals.waiting("small", EAGLE) == ()
    assert len(proposals.all("small", EAGLE)) == 1
    with pytest.raises(UsageError, match="nothing is proposed there"):
        accept_proposed(proposals, ["eagle-*"], baselines, why="again", who="Ada", now=NOW)


def test_a_file_that_has_grown_proposes_only_what_is_new(tmp_path, told):
    proposals = ProposalStore(tmp_path / "base")
    proposals.add(propose(written(tmp_path, LINE), told).proposals)
    later = LINE | {"server_info": INFO | {"random_seed": 8}}
    (added,) = proposals.add(propose(written(tmp_path, LINE, LINE, later), told).proposals)
    assert added.launch.origin.imported_from.startswith("night.jsonl from line 3 ")


def test_accepting_a_proposal_needs_a_reason(tmp_path, told):
    proposals = ProposalStore(tmp_path / "base")
    proposals.add(propose(written(tmp_path, LINE), told).proposals)
    with pytest.raises(UsageError, match="--why"):
        accept_proposed(proposals, ["*"], BaselineStore(tmp_path / "base"), why=" ", who="Ada", now=NOW)


def test_a_bad_line_of_the_proposals_is_named(tmp_path, told):
    proposals = ProposalStore(tmp_path / "base")
    proposals.add(propose(written(tmp_path, LINE), told).proposals)
    path = proposals.path("small", EAGLE)
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(UsageError, match=r"line 2: launch: Field required"):
        proposals.waiting("small", EAGLE)


STEADY = KEY.model_copy(update={"workload": workload_key(Workload(16, 32, 32, 16))})


def passed(steady: float, whole: float | None) -> Any:
    repeat = Repeat((), 0.0, 1.0, steady, (), (), None, pass_tokens_per_second=whole)
    return replace(measurement(steady), repeats=(repeat, repeat))


def test_whole_passes_are_judged_by_imported_launches(tmp_path):
    store = BaselineStore(tmp_path)
    store.add(launch(160.0, key=pass_key(STEADY)))
    found, compared = judged_by(STEADY, passed(200.0, 158.0), store)
    assert [item.tokens_per_second for item in found.launches] == [160.0]
    assert compared.output_tokens_per_second == 158.0
    assert [repeat.output_tokens_per_second for repeat in compared.repeats] == [158.0, 158.0]


def test_the_suites_own_launches_come_before_imported_ones(tmp_path):
    store = BaselineStore(tmp_path)
    store.add(launch(160.0, key=pass_key(STEADY)))
    store.add(launch(201.0, key=STEADY))
    measured = passed(200.0, 158.0)
    found, compared = judged_by(STEADY, measured, store)
    assert [item.tokens_per_second for item in found.launches] == [201.0]
    assert compared is measured


def test_without_the_figure_of_whole_passes_imported_launches_judge_nothing(tmp_path):
    store = BaselineStore(tmp_path)
    store.add(launch(160.0, key=pass_key(STEADY)))
    assert judged_by(STEADY, passed(200.0, None), store)[0].launches == ()


def test_a_run_is_compared_with_imported_launches_by_its_whole_passes(tmp_path):
    store = BaselineStore(tmp_path / "base")
    passes = {"pass_tokens_per_second": 144.0}
    run = Night(tmp_path / "out", records={(EAGLE, "C16"): passes}).write()
    (launched,) = accept(run, (EAGLE,), store, why="x", who="Ada", now=NOW, workloads=("C16",))
    imported = BaselineStore(tmp_path / "imported")
    imported.add(launched.model_copy(update={"key": pass_key(launched.key), "tokens_per_second": 160.0}))
    line = next(line for line in differences(run, imported) if (line.cell, line.workload) == (EAGLE, "C16"))
    assert (line.tokens_per_second, line.speed, line.acceptance) == (144.0, pytest.approx(0.9), None)
    assert line.note == "imported: of whole passes"
