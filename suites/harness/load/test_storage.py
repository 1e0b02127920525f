"""A measurement reads back as it was written."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtpgate.errors import UsageError
from mtpgate.load.measurement import Arrival, Distribution, Measurement, Repeat, RequestRecord, SteadyState
from mtpgate.load.storage import append, from_json, read, to_json

# A small alphabet: drawing from all of Unicode costs seconds for its tables.
texts = st.text(alphabet='a"\\\n 日\u2028\ud800', max_size=5)
times = st.floats(0, 1e6)
figures = st.floats(0, 1e9)
json_values = st.none() | st.booleans() | st.integers() | texts | st.lists(st.integers())
records = st.builds(
    RequestRecord,
    prompt_id=texts,
    slot=st.integers(0, 64),
    sent=times,
    arrivals=st.lists(st.builds(Arrival, time=times, completion_tokens=st.integers(0)), max_size=4).map(tuple),
    finished=times,
    input_tokens=st.integers(0),
    output_tokens=st.integers(0),
    text=texts,
    meta=st.dictionaries(texts, json_values, max_size=3),
    error=st.none() | texts,
    output_ids=st.lists(st.integers(0), max_size=3).map(tuple),
    counts_exact=st.booleans(),
)
steady_states = st.builds(
    SteadyState,
    started=times,
    ended=times,
    output_tokens=figures,
    input_tokens=figures,
    concurrency=figures,
    output_tokens_per_second=figures,
    total_tokens_per_second=figures,
    ramp_seconds=times,
    tail_seconds=times,
)
distributions = st.builds(
    Distribution, st.integers(1), figures, figures, st.none() | figures, st.none() | figures, st.none() | figures
)
repeats = st.builds(
    Repeat,
    records=st.lists(records, max_size=3).map(tuple),
    started=times,
    ended=times,
    output_tokens_per_second=figures,
    ttft_seconds=st.lists(times, max_size=3).map(tuple),
    tpot_seconds=st.lists(times, max_size=3).map(tuple),
    accept_length=st.none() | figures,
    client=st.dictionaries(texts, st.none() | figures, max_size=2),
    steady=st.none() | steady_states,
    pass_tokens_per_second=st.none() | figures,
)
measurements = st.builds(
    Measurement,
    cell_id=texts,
    workload=texts,
    concurrency=st.integers(1, 64),
    input_tokens=st.integers(1),
    output_tokens=st.integers(1),
    repeats=st.lists(repeats, max_size=2).map(tuple),
    output_tokens_per_second=figures,
    accept_length=st.none() | figures,
    ttft_p50_seconds=figures,
    tpot_p50_seconds=figures,
    void=st.none() | texts,
    conditions=st.dictionaries(texts, json_values, max_size=3),
    distributions=st.dictionaries(texts, distributions, max_size=2),
)


@settings(derandomize=True, deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(measurement=measurements)
def test_reading_gives_back_what_was_written(measurement: Measurement) -> None:
    line = to_json(measurement)
    assert "\n" not in line
    assert from_json(line) == measurement


def void() -> Measurement:
    return Measurement("none", "C1", 1, 4, 8, (), math.nan, None, math.nan, math.nan, void="cut")


def test_a_measurement_without_figures_reads_back():
    back = from_json(to_json(void()))
    assert math.isnan(back.output_tokens_per_second) and math.isnan(back.ttft_p50_seconds)
    assert back.void == "cut"


def test_a_line_from_before_the_steady_state_was_kept_reads():
    content = json.loads(to_json(void()))
    del content["distributions"]
    content["repeats"] = [
        {"records": [], "started": 0.0, "ended": 1.0, "output_tokens_per_second": 5.0}
        | {"ttft_seconds": [], "tpot_seconds": [], "accept_length": None, "client": {}}
    ]
    (repeat,) = from_json(json.dumps(content)).repeats
    assert (repeat.steady, repeat.pass_tokens_per_second) == (None, None)


def test_lines_are_appended_to_a_file(tmp_path):
    path = tmp_path / "new" / "load.jsonl"
    append(path, void())
    append(path, void())
    assert [measurement.cell_id for measurement in read(path)] == ["none", "none"]


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"format":9}', '{"format":1,"cell_id":"x"}'])
def test_a_bad_line_is_named_with_its_file(tmp_path, line):
    path = tmp_path / "load.jsonl"
    append(path, void())
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UsageError, match=r"load\.jsonl, line 2: "):
        read(path)
