"""``python -m mtpgate``: what scripts rely on, and what a wrong call comes to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOG = ROOT / "suites" / "harness" / "server" / "cases" / "seed_mtp_capture_oom.log"
CONTEXT = LOG.with_suffix(".json")
RTX = "matrices/rtx-pro-6000-dsv4-flash.yaml"


def mtpgate(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mtpgate", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_cells_as_json_are_ids_arguments_waivers_and_what_is_pruned() -> None:
    told = json.loads(mtpgate("cells", "--matrix", RTX, "--json").stdout)
    bad = next(cell for cell in told["cells"] if cell["id"] == "eagle-s1-k1-d2-f0.70-bs32")
    assert bad["args"]["mem_fraction_static"] == 0.7
    assert [waiver["kind"] for waiver in bad["waivers"]] == ["oom_graph_capture"]
    assert {"id", "reason"} <= set(told["pruned"][0])


def test_cells_for_a_person_name_the_matrix() -> None:
    assert mtpgate("cells", "--matrix", RTX).stdout.startswith(RTX)


def test_diagnose_as_json_has_the_keys_of_the_contract() -> None:
    told = json.loads(mtpgate("diagnose", str(LOG), "--context", str(CONTEXT), "--json").stdout)
    assert list(told)[:7] == ["phase", "kind", "rank", "numbers", "advice", "not_advice", "evidence"]
    assert (told["advice"]["max"], told["numbers"]["tried"]) == (0.645, 7.5)
    assert [rank["rank"] for rank in told["budget"]["ranks"]] == ["TP0", "TP1", "TP2", "TP3"]
    assert told["phases"][-1]["phase"] == "capture_target_verify"
    assert (told["kind"], told["rank"]) == ("oom_graph_capture", "TP1")
    assert set(told["evidence"][0]) == {"line", "text"}
    assert told["advice"]["mem_fraction_static"] == "lower"


def test_diagnose_for_a_person_says_what_to_change_and_where_the_memory_went() -> None:
    told = mtpgate("diagnose", str(LOG), "--context", str(CONTEXT)).stdout
    for words in ("Lower --mem-fraction-static from 0.70 to 0.60", "What would not help:", "Memory in GiB", "7.50"):
        assert words in told
    assert "weight_load" in told
    assert "Traceback" not in told.partition("What to change:")[2]


def test_doctor_says_what_a_run_would_do() -> None:
    told = json.loads(mtpgate("doctor", "--json").stdout)
    assert {"gpus", "driver", "no_gpus_because", "cpu_engine", "would_run"} == set(told)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cells", "--matrix", "nowhere.yaml"), "nowhere.yaml"),
        (("diagnose", "nowhere.log"), "no such file"),
        (("diagnose", "suites"), "no file"),
        (("diagnose", str(LOG), "--context", "README.md"), "not JSON"),
        (("report", "--out", "suites"), "suites"),
        (("sing",), "No such command"),
    ],
)
def test_bad_use_is_one_message_and_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    ended = mtpgate(*arguments)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", ["cells", "diagnose", "doctor", "fit", "model", "report"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    assert "Example: python -m mtpgate" in mtpgate(command, "--help").stdout


def test_evaluate_rule_as_json_has_rates_for_each_rule_and_scenario() -> None:
    told = json.loads(mtpgate("evaluate-rule", "--nights", "10", "--json").stdout)
    assert {row["noise"] for row in told["scenarios"]} >= {"independent", "correlated nights", "heavy tails"}
    for row in told["scenarios"]:
        assert len(row["rules"]) == 5
        for rates in row["rules"].values():
            assert 0 <= rates["false_alarms_a_night"] <= 1
            assert set(rates["found_in_one_night"]) == {"0.03", "0.05", "0.1"}


def test_evaluate_rule_refuses_no_nights() -> None:
    ended = mtpgate("evaluate-rule", "--nights", "0")
    assert ended.returncode == 2
    assert "--nights" in ended.stderr
