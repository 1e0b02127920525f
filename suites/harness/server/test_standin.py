"""The stand-in looks like the real server: compared with what SGLang 0.5.23 said on the CPU (``standin/recorded``)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from mtpgate.server.launch import RunningServer, StartupFailure, launch
from mtpgate.server.phases import PhaseTracker
from mtpgate.server.records import ANSI

Start = Callable[..., RunningServer]
RECORDED = Path(__file__).parents[1] / "standin" / "recorded"
GREEDY = {"max_new_tokens": 12, "temperature": 0.0}


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return dict(json.loads((RECORDED / "answers-0.5.23.json").read_text()))


@pytest.fixture(params=["none", "eagle"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def standin(start: Start, kind: str, eagle: tuple[str, ...]) -> RunningServer:
    return start(flags=eagle if kind == "eagle" else ())


def shapes(path: Path) -> list[str]:
    """The lines of a log without their dates, numbers, paths and lists."""
    found = []
    for line in path.read_text(errors="replace").replace("\r", "\n").splitlines():
        text = re.sub(r"^\[\d{4}-[\d: -]+\] ", "", ANSI.sub("", line))
        text = re.sub(r"server_args=.*", "server_args=", text)
        found.append(re.sub(r"-?\d+(\.\d+)?", "N", text))
    return found


def phase_names(path: Path) -> list[str]:
    tracker = PhaseTracker()
    for line in path.read_text(errors="replace").split("\n"):
        tracker.feed(line)
    return [span.phase for span in tracker.timeline().phases]


def test_every_log_line_is_one_of_the_real_servers(standin: RunningServer, kind: str) -> None:
    standin.stop()
    real = set(shapes(RECORDED / "eagle-0.5.23-cpu.log")) | set(shapes(RECORDED / f"{kind}-0.5.23-cpu.log"))
    assert [line for line in shapes(standin.log_path) if line not in real] == []


def test_phases_are_the_real_servers(standin: RunningServer, kind: str) -> None:
    assert phase_names(standin.log_path) == phase_names(RECORDED / f"{kind}-0.5.23-cpu.log")


def test_answer_has_the_real_keys(standin: RunningServer, kind: str, answers: dict[str, Any]) -> None:
    with standin.client() as client:
        plain = client.generate(text="hello", sampling_params=GREEDY)
        detailed = client.generate(
            input_ids=client.tokenize("hello"),
            sampling_params=GREEDY,
            return_logprob=True,
            top_logprobs_num=2,
            logprob_start_len=1,
        )
    for got, real in ((plain, answers[kind]["generate"]), (detailed, answers[kind]["generate_logprobs"])):
        assert set(got) == set(real)
        assert set(got["meta_info"]) == set(real["meta_info"])
        assert types(got["meta_info"]) == types(real["meta_info"])
    real = answers[kind]["generate_logprobs"]["meta_info"]
    for key in ("input_token_logprobs", "input_top_logprobs"):
        # From logprob_start_len on, the first without a value.
        assert len(detailed["meta_info"][key]) == len("hello") - 1
        assert describe(detailed["meta_info"][key][:2]) == describe(real[key][:2])
    for key in ("output_token_logprobs", "output_top_logprobs"):
        assert describe(detailed["meta_info"][key]) == describe(real[key])


def types(meta: dict[str, Any]) -> dict[str, str]:
    # The details are an object only where something was cached.
    return {key: type(value).__name__ for key, value in meta.items() if key != "cached_tokens_details"}


def describe(value: Any) -> Any:
    """The nesting of lists with the types in it."""
    return [describe(item) for item in value] if isinstance(value, list) else type(value).__name__


def test_stream_has_the_real_keys_in_first_middle_and_last_chunk(
    standin: RunningServer, kind: str, answers: dict[str, Any]
) -> None:
    body = {"text": "hello", "sampling_params": GREEDY, "stream": True}
    with requests.post(f"{standin.base_url}/generate", json=body, stream=True, timeout=10) as response:
        lines = [line.decode() for line in response.iter_lines() if line]
    assert response.headers["Content-Type"] == answers[kind]["stream_content_type"]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    for got, real in zip((chunks[0], chunks[1], chunks[-1]), answers[kind]["stream"], strict=True):
        assert set(got) == set(real)
        assert set(got["meta_info"]) == set(real["meta_info"])
    # Cumulative, and with speculation several tokens in a chunk.
    assert [chunk["output_ids"] for chunk in chunks] == [
        chunks[-1]["output_ids"][: len(c["output_ids"])] for c in chunks
    ]
    assert (len(chunks) < GREEDY["max_new_tokens"]) == (kind == "eagle")


def test_reports_have_only_keys_that_the_real_server_has(
    standin: RunningServer, kind: str, answers: dict[str, Any]
) -> None:
    real = answers[kind]
    with standin.client() as client:
        info, model = client.server_info(), client.model_info()
    assert set(info) <= set(real["server_info_keys"])
    assert set(info["startup_time"]) == set(real["startup_time"])
    assert set(info["internal_states"][0]) <= set(real["internal_state_keys"])
    assert set(info["internal_states"][0]["memory_usage"]) == set(real["memory_usage"])
    assert set(model) <= set(real["model_info_keys"])


def test_other_endpoints_answer_in_the_real_form(standin: RunningServer, kind: str, answers: dict[str, Any]) -> None:
    real = answers[kind]
    url = standin.base_url
    tokens = requests.post(f"{url}/tokenize", json={"prompt": "hi"}, timeout=10).json()
    assert set(tokens) == set(real["tokenize"])
    models = requests.get(f"{url}/v1/models", timeout=10).json()
    assert set(models["data"][0]) == set(real["model_keys"])
    unknown = requests.get(f"{url}/nope", timeout=10)
    assert [unknown.status_code, unknown.json()] == [real["unknown_path"][0], json.loads(real["unknown_path"][1])]
    body = {"model": "x", "prompt": "hello there", "max_tokens": 5}
    completion = requests.post(f"{url}/v1/completions", json=body, timeout=10).json()
    assert set(completion) <= set(real["completion"])
    assert set(completion["choices"][0]) <= set(real["completion"]["choices"][0])
    assert completion["usage"].items() >= {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}.items()


def test_answers_depend_on_the_prompt_and_not_on_speculation(start: Start, eagle: tuple[str, ...]) -> None:
    outputs = {}
    for name, flags in (("none", ()), ("eagle", eagle)):
        with start(flags=flags).client() as client:
            for prompt in ("one early token", "One early token"):
                outputs[name, prompt] = client.generate(text=prompt, sampling_params=GREEDY)["output_ids"]
    assert outputs["none", "one early token"] == outputs["eagle", "one early token"]
    assert outputs["none", "one early token"] != outputs["none", "One early token"]


def test_forced_tokens_get_the_probability_they_were_chosen_with(start: Start) -> None:
    with start().client() as client:
        prompt = client.tokenize("hello")
        output = client.generate(input_ids=prompt, sampling_params=GREEDY)["output_ids"]
        forced = client.generate(
            input_ids=prompt + output,
            sampling_params={"max_new_tokens": 1},
            return_logprob=True,
            top_logprobs_num=2,
            logprob_start_len=len(prompt) - 1,
        )["meta_info"]
    assert [token for _, token, _ in forced["input_token_logprobs"][1:]] == output
    assert [best[0][1] for best in forced["input_top_logprobs"][1:]] == output


@pytest.mark.parametrize("answers_kind", ["wrong", "wrong_speculative"])
def test_wrong_answers_differ_in_one_token(start: Start, eagle: tuple[str, ...], answers_kind: str) -> None:
    with start().client() as client:
        right = client.generate(text="hello", sampling_params=GREEDY)["output_ids"]
    with start(flags=eagle, answers=answers_kind).client() as client:
        wrong = client.generate(text="hello", sampling_params=GREEDY)["output_ids"]
    first = next(place for place, (a, b) in enumerate(zip(right, wrong, strict=True)) if a != b)
    assert first == GREEDY["max_new_tokens"] // 2


def test_cut_stream_ends_without_its_last_chunk(start: Start) -> None:
    body = {"text": "hello", "sampling_params": GREEDY, "stream": True}
    server = start(answers="cut")
    with (
        pytest.raises(requests.exceptions.ChunkedEncodingError),
        requests.post(f"{server.base_url}/generate", json=body, stream=True, timeout=10) as response,
    ):
        list(response.iter_lines())


@pytest.mark.parametrize(
    "version", ["0.4.3.post2", "0.4.6.post5", "0.4.9.post6", "0.5.4", "0.5.9", "0.5.12.post1", "0.5.15.post1", "0.5.23"]
)
def test_every_version_reaches_its_captures(start: Start, eagle: tuple[str, ...], version: str) -> None:
    timeline = start(flags=eagle, device="gpu", version=version).timeline
    assert timeline.reached("capture_target_verify")
    assert timeline.reached("capture_draft_decode")
    assert timeline.reached("draft_load")
    assert timeline.reached("ready")


@pytest.mark.parametrize(("fraction", "limit"), [("0.62", "32"), ("0.70", "16")])
def test_a_pretended_gpu_with_room_adds_up(start: Start, eagle: tuple[str, ...], fraction: str, limit: str) -> None:
    flags = (*eagle, "--mem-fraction-static", fraction, "--cuda-graph-max-bs", limit)
    small = {"graph_per_token": 0.25}
    log = start(flags=flags, device="gpu", memory=small).log_path.read_text()
    taken = [float(size) for size in re.findall(r"(?:mem usage=|[KV] size: )([\d.]+) GB", log)]
    last = re.search(r"available_gpu_mem=([\d.]+) GB", log)
    assert last
    assert sum(taken) + float(last[1]) == pytest.approx(94.17, abs=0.05)
    assert f"bs=[1, 2, 4, 8, 12, 16{', 24, 32' if limit == '32' else ''}]" in log
    assert "num_tokens_per_req=4" in log


@pytest.mark.parametrize(
    ("fraction", "kind", "phase"),
    [("0.70", "oom_graph_capture", "capture_target_verify"), ("0.40", "not_enough_memory", "kv_pool")],
)
def test_a_pretended_gpu_without_room_fails_as_sglang_does(
    make_spec: Callable[..., Any], eagle: tuple[str, ...], fraction: str, kind: str, phase: str
) -> None:
    flags = (*eagle, "--mem-fraction-static", fraction, "--cuda-graph-max-bs", "32")
    with pytest.raises(StartupFailure) as failed:
        launch(make_spec(flags=flags, device="gpu", memory={}))
    found = failed.value.diagnosis
    assert (found.kind, found.phase) == (kind, phase)
    if kind == "oom_graph_capture":
        tried, free, total, used = (float(str(found.numbers[n])) for n in ("tried", "free", "total", "in_use"))
        assert free < tried
        assert used + free == pytest.approx(total, abs=0.02)
