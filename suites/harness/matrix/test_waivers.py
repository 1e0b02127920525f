"""Known-bad marks: read strictly, and told when they cover nothing."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from mtpgate.errors import UsageError
from mtpgate.matrix.cell import Cell, Expansion, Waiver
from mtpgate.matrix.expand import expand
from mtpgate.matrix.load import load_matrix
from mtpgate.matrix.waivers import load_waivers, unmatched

MATRICES = Path(__file__).parents[3] / "matrices"
ROW = "waivers:\n  - cell: eagle-*\n    check: startup\n    reason: r\n"


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "known_bad.yaml"
        path.write_text(text)
        return path

    return write


def test_a_row_becomes_a_waiver(written) -> None:
    text = ROW + "    kind: hang\n    phase: warmup\n    message: 'x+'\n    until: 2027-01-31\n    issue: https://a/1\n"
    assert load_waivers(written(text)) == (
        Waiver(
            "eagle-*",
            "startup",
            "r",
            kind="hang",
            phase="warmup",
            message="x+",
            issue="https://a/1",
            until=datetime.date(2027, 1, 31),
        ),
    )


@pytest.mark.parametrize("text", ["waivers: []\n", "waivers:\n  []\n"])
def test_there_may_be_none(written, text: str) -> None:
    assert load_waivers(written(text)) == ()


def test_no_file_is_no_waiver(tmp_path: Path) -> None:
    assert load_waivers(tmp_path / "known_bad.yaml") == ()


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ("    until: someday\n", "waivers[0].until: expected a valid date, found 'someday'"),
        ("    message: '('\n", "waivers[0].message: not a regular expression: missing )"),
        ("    kind: oom_capture\n", "waivers[0].kind: unknown value 'oom_capture'"),
        ("    kind: oom_graph_captur\n", "did you mean oom_graph_capture?"),
        ("    phase: warm-up\n", "waivers[0].phase: unknown value 'warm-up'; did you mean warmup?"),
        ("    issue: '#12'\n", "waivers[0].issue: expected a link"),
        ("    untill: 2027-01-31\n", "waivers[0].untill: unknown key; did you mean until?"),
        ("    since: 2027-02-01\n    until: 2027-01-31\n", "waivers[0].until: 2027-01-31 is before since 2027-02-01"),
    ],
)
def test_a_faulty_row_is_named_by_line_and_key(written, more: str, fault: str) -> None:
    path = written(ROW + more)
    with pytest.raises(UsageError) as raised:
        load_waivers(path)
    line = len((ROW + more).splitlines())
    assert str(raised.value).startswith(f"{path}:{line}: ")
    assert fault in str(raised.value)


def test_a_check_that_does_not_exist_is_refused(written) -> None:
    with pytest.raises(UsageError, match="unknown value 'startupp'; did you mean startup"):
        load_waivers(written(ROW.replace("startup", "startupp")))


def test_a_waiver_that_covers_no_cell_is_reported() -> None:
    expansion = Expansion((Cell("eagle-s1-k1-d2", {}),), ())
    good, renamed = Waiver("eagle-*", "startup", "r"), Waiver("mtp-*", "startup", "r")
    elsewhere = Waiver("eagle-*", "startup", "r", matrix="other")
    assert unmatched((good, renamed, elsewhere), [("m", expansion)]) == (renamed, elsewhere)


def test_the_historic_failure_is_marked_with_its_figures() -> None:
    matrix = load_matrix(MATRICES / "rtx-pro-6000-dsv4-flash.yaml")
    cells = expand(matrix, load_waivers(MATRICES / "known_bad.yaml")).cells
    marked = [cell for cell in cells if cell.waivers]
    assert [cell.id for cell in marked] == ["eagle-s1-k1-d2-f0.70-bs32"]
    (waiver,) = marked[0].waivers_for("startup")
    assert waiver is not None
    assert (waiver.kind, waiver.phase) == ("oom_graph_capture", "capture_target_verify")
    assert all(figure in waiver.reason for figure in ("7.50", "2.30", "92.67", "0.645"))


def test_every_committed_waiver_covers_a_cell() -> None:
    matrices = [load_matrix(path) for path in sorted(MATRICES.glob("*.yaml")) if path.name != "known_bad.yaml"]
    expansions = [(matrix.name, expand(matrix)) for matrix in matrices]
    assert unmatched(load_waivers(MATRICES / "known_bad.yaml"), expansions) == ()
