"""What a person learns from a matrix file with faults in it: every one, by line and key, in one message."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mtpgate.errors import UsageError
from mtpgate.matrix.load import load_matrix
from mtpgate.matrix.schema import Matrix
from mtpgate.matrix.waivers import WaiverRow, load_waivers

MATRICES = Path(__file__).parents[3] / "matrices"

MINIMAL = """\
name: small
hardware: {kind: cpu}
engine: embedded
model: {path: builtin:small-mtp}
workloads:
  - {concurrency: 1, input_tokens: 8, output_tokens: 8, requests: 2}
"""


@pytest.fixture
def faults_of(tmp_path: Path):
    """The lines of the error that loading this text (or bytes) raises, without the folder."""

    def load(text: str | bytes) -> list[str]:
        path = tmp_path / "x.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        with pytest.raises(UsageError) as raised:
            load_matrix(path)
        return str(raised.value).replace(f"{tmp_path}/", "").splitlines()

    return load


def test_a_minimal_matrix_loads(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(MINIMAL)
    assert load_matrix(path).workloads[0].repeats == 3


def test_every_committed_matrix_loads() -> None:
    names = {load_matrix(path).name for path in MATRICES.glob("*.yaml") if path.name != "known_bad.yaml"}
    assert names == {"cpu-small", "rtx-pro-6000-dsv4-flash"}


def test_an_unknown_key_is_named_with_file_line_key_and_the_nearest_known(faults_of) -> None:
    text = MINIMAL + "axes:\n  speculation:\n    - null\n    - {num_step: 1}\n"
    assert faults_of(text) == ["x.yaml:10: axes.speculation[1].num_step: unknown key; did you mean num_steps?"]


def test_all_faults_of_a_file_come_at_once_in_its_order(faults_of) -> None:
    text = MINIMAL.replace("kind: cpu", "kind: cpus") + "deadlines: {warmupp: 1}\nmodle: x\n"
    assert [fault.split(":")[1] for fault in faults_of(text)] == ["2", "7", "8"]


def test_a_missing_key_is_placed_at_the_mapping_that_lacks_it(faults_of) -> None:
    text = MINIMAL.replace("  - {concurrency: 1, input_tokens: 8", "  - {concurrency: 1")
    assert faults_of(text) == ["x.yaml:6: workloads[0].input_tokens: missing; this key is required"]


def test_a_key_written_twice_is_an_error_that_names_both_lines(faults_of) -> None:
    assert faults_of(MINIMAL + "name: again\n") == ["x.yaml:7: name: written twice (first on line 1)"]


def test_a_yaml_syntax_error_has_its_line(faults_of) -> None:
    assert faults_of(MINIMAL + "about: a: b\n") == ["x.yaml:7: not valid YAML: mapping values are not allowed here"]


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("axes: {mem_fraction_static: []}", "axes.mem_fraction_static: an empty axis has no cells"),
        ("axes: {mem_fraction_static: [0.5, 0.50]}", "axes.mem_fraction_static[1]: the same point as [0]"),
        ("arguments: {mem-fraction-static: 0.5}", "spelled as a flag; write the ServerArgs name mem_fraction_static"),
        ("arguments: {port: 1}", "arguments.port: not an argument of a cell"),
        ("arguments: {x: .nan}", "arguments.x: expected a word, a finite number or true/false, found nan"),
        ("arguments: {x: [1]}", "arguments.x: expected a word, a number or true/false, found a list"),
        ("axes: {Fraction: [1]}", "axes.Fraction: not a ServerArgs name"),
        ("reference: {Fraction: 1}", "reference.Fraction: not a ServerArgs name"),
        ("include: [{mem-x: 1}]", "include[0].mem-x: spelled as a flag"),
        ("exclude: [{when: {a: 1}}]", "exclude[0].reason: missing"),
        ("conditions: [{when: {}}]", "conditions[0].when: an empty pattern matches every cell"),
        ("environment: {A B: 1}", "environment.A B: not the name of an environment variable"),
        ("environment: {A: true}", "environment.A: expected text or a number"),
        ("deadlines: {warmup: 0}", "deadlines.warmup: expected greater than 0, found 0"),
        ("silence: {warmup: 0}", "silence.warmup: expected greater than 0, found 0"),
        ("silence: {warmupp: 1}", "silence.warmupp: unknown phase; did you mean warmup?"),
        (
            "silence: {warmup: 10}\ndeadlines: {warmup: 9}",
            "silence.warmup: 10 s are never reached: deadlines.warmup ends the phase after 9 s",
        ),
        ("accept_length_floor: 0.5", "accept_length_floor: expected greater than or equal to 1, found 0.5"),
        ("about: 3", "about: expected a valid string, found 3"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(faults_of, more: str, fault: str) -> None:
    found = faults_of(f"{MINIMAL}{more}\n")
    assert len(found) == 1
    assert fault in found[0]
    assert found[0].startswith("x.yaml:7: ")


def test_fewer_requests_than_clients_are_refused(faults_of) -> None:
    assert "workloads[0].requests" in faults_of(MINIMAL.replace("concurrency: 1", "concurrency: 4"))[0]


def test_two_workloads_of_one_concurrency_are_refused(faults_of) -> None:
    row = MINIMAL.splitlines()[-1]
    assert "both are C1" in faults_of(f"{MINIMAL}{row}\n")[0]


def test_two_workloads_of_one_concurrency_may_differ_in_their_api(tmp_path) -> None:
    row = MINIMAL.splitlines()[-1]
    path = tmp_path / "x.yaml"
    path.write_text(f"{MINIMAL}{row.replace('}', ', api: completions}')}\n")
    assert [workload.name for workload in load_matrix(path).workloads] == ["C1", "C1-completions"]


def test_no_workload_is_refused(faults_of) -> None:
    assert "no workload" in faults_of(MINIMAL.partition("workloads:")[0] + "workloads: []\n")[0]


def test_cuda_hardware_needs_a_gpu_name(faults_of) -> None:
    text = MINIMAL.replace("{kind: cpu}", "{kind: cuda}").replace("embedded", "sglang")
    assert "kind cuda needs gpu" in faults_of(text)[0]


def test_the_embedded_engine_is_for_the_cpu(faults_of) -> None:
    text = MINIMAL.replace("{kind: cpu}", "{kind: cuda, gpu: 'NVIDIA H100*', count: 1}")
    assert faults_of(text) == ["x.yaml:3: engine: the embedded engine runs on hardware.kind cpu only"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "the file is empty"),
        (b"# a comment only\n", "the file is empty"),
        (b"\x7fELF\0\0", "a binary file"),
        (b"a: \xff\xfe", "not UTF-8"),
        (b"words", "expected a mapping of keys"),
        (b"- a\n- b\n", "expected a mapping of keys at the top, found a list"),
        (b"a: 1\n---\nb: 2\n", "single document"),
        (b"a: &a [*a]\n", "an alias that contains itself"),
        (b"a: *nowhere\n", "undefined alias"),
        (b"[" * 900, "nested too deeply"),
        (b"a: !!python/object:os.system x\n", "cannot be read as"),
        (b"x" * (2 << 20), "larger than 1 MiB"),
    ],
)
def test_a_file_that_is_no_matrix_is_one_clear_error(faults_of, content: bytes, fault: str) -> None:
    assert any(fault in line for line in faults_of(content))


def test_aliases_that_multiply_are_refused_before_they_fill_the_memory(faults_of) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert "once its aliases are followed" in faults_of("\n".join(rows))[0]


def test_an_honest_alias_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(MINIMAL + "axes:\n  a: &points [1, 2]\n  b: *points\n")
    assert load_matrix(path).axes.others["b"] == (1, 2)


def test_a_missing_file_names_the_one_that_was_probably_meant(tmp_path: Path) -> None:
    (tmp_path / "cpu-small.yaml").write_text(MINIMAL)
    with pytest.raises(UsageError, match="no such file; did you mean cpu-small"):
        load_matrix(tmp_path / "cpu-smal.yaml")


def test_a_directory_is_no_matrix(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        load_matrix(tmp_path)


@pytest.mark.parametrize(
    ("reference", "fault"),
    [
        ("reference: nomtp-x", "nomtp-x is no cell of this matrix; cells without speculation: nomtp"),
        ("reference: eagle-s1-k1-d2", "eagle-s1-k1-d2 speculates"),
        ("reference: eagle-s1-k1-d4", "eagle-s1-k1-d4 is not launched: the same launch as eagle-s1-k1-d2"),
        ("reference: {engine_knob: null}", "matches 2 cells"),
    ],
)
def test_an_impossible_reference_is_named_at_its_line(faults_of, reference: str, fault: str) -> None:
    points = "[null, {num_steps: 1, eagle_topk: 1, num_draft_tokens: 4}]"
    found = faults_of(f"{MINIMAL}axes: {{speculation: {points}}}\n{reference}\n")
    assert fault in found[0]
    assert found[0].startswith("x.yaml:8: reference: ")


def test_a_matrix_without_a_cell_to_compare_with_is_refused(faults_of) -> None:
    assert "every cell speculates" in faults_of(MINIMAL + "axes: {speculation: [{num_steps: 1, eagle_topk: 1}]}\n")[0]


@pytest.mark.parametrize("section", ["exclude: [{when: {a: 2}, reason: x}]", "conditions: [{when: {a: 2}}]"])
def test_a_pattern_that_matches_no_point_is_refused(faults_of, section: str) -> None:
    assert "matches no point of this matrix" in faults_of(f"{MINIMAL}arguments: {{a: 1}}\n{section}\n")[0]


@pytest.mark.parametrize(("number", "load"), [(0, load_matrix), (1, load_waivers)])
def test_the_examples_of_the_readme_load(tmp_path: Path, number: int, load) -> None:
    text = (MATRICES / "README.md").read_text()
    path = tmp_path / "example.yaml"
    path.write_text(re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[number])
    assert load(path)


def test_the_readme_shows_every_key() -> None:
    text = (MATRICES / "README.md").read_text()
    keys = {item.alias or name for model in (Matrix, WaiverRow) for name, item in model.model_fields.items()}
    assert [key for key in sorted(keys) if f"{key}:" not in text] == []
