"""The scanning reader says what the decoding one says, however a stream is cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtpgate.load.sse import DecodingReader, ScanningReader, decode_event

# A small alphabet: drawing from all of Unicode costs seconds for its tables.
texts = st.text(alphabet='ab"\\:{}\n1é0 日\u2028') | st.just('"completion_tokens":7')


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    counts = sorted(draw(st.lists(st.integers(0, 10**6), max_size=6)))
    indent = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    events = [
        {"text": draw(texts), "output_ids": [1], "meta_info": {"completion_tokens": count, "note": draw(texts)}}
        for count in counts
    ]
    stream = b"".join(b"data: " + json.dumps(event, separators=indent).encode() + b"\n\n" for event in events)
    return stream + draw(st.sampled_from([b"", b"data: [DONE]\n\n", b'data: {"error":{"message":"x"}}\n\n']))


@settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stream=streams(), cuts=st.lists(st.integers(0, 2000)))
def test_scanning_equals_decoding_for_any_cut(stream: bytes, cuts: list[int]) -> None:
    scanning, decoding = ScanningReader(), DecodingReader()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, end in itertools.pairwise(edges):
        assert scanning.feed(stream[start:end]) == decoding.feed(stream[start:end])
    assert scanning.events() == decoding.events()


def test_an_incomplete_event_gives_no_count_yet():
    reader = ScanningReader()
    assert reader.feed(b'data: {"meta_info":{"completion_tokens":1') == []
    assert reader.feed(b"2}}\n") == []
    assert reader.feed(b"\n") == [12]


def test_done_is_not_the_last_event():
    reader = ScanningReader()
    reader.feed(b'data: {"text":"a"}\n\ndata: [DONE]\n\n')
    assert decode_event(reader.events()) == {"text": "a"}


@pytest.mark.parametrize("event", [b"", b"data: [1]", b"data: {", b'{"text":"a"}'])
def test_what_is_no_event_is_refused(event):
    with pytest.raises(ValueError):
        decode_event(event)
