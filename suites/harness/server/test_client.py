"""The control client against a stand-in that answers well, badly or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mtpgate.server import ports
from mtpgate.server.client import ServerClient, ServerError
from mtpgate.server.launch import RunningServer

Start = Callable[..., RunningServer]
GREEDY = {"max_new_tokens": 8, "temperature": 0.0}


def test_text_and_token_ids_give_the_same_answer(start: Start) -> None:
    with start().client() as client:
        by_text = client.generate(text="hello", sampling_params=GREEDY)
        by_ids = client.generate(input_ids=client.tokenize("hello"), sampling_params=GREEDY)
    assert by_text["output_ids"] == by_ids["output_ids"]
    assert by_text["meta_info"]["completion_tokens"] == 8


def test_tokens_turn_into_the_text_that_they_came_from(start: Start) -> None:
    with start().client() as client:
        assert client.detokenize(client.tokenize("grüße")) == "grüße"
        assert client.detokenize([]) == ""


def test_older_servers_are_asked_by_their_older_names(start: Start) -> None:
    server = start(old_endpoints_only=True)
    with server.client() as client:
        assert client.server_info()["version"] == "0.5.23"
        assert client.model_info()["model_path"] == "some-model"


def test_flush_waits_for_pending_requests(start: Start) -> None:
    pauses: list[float] = []
    server = start(flush_refusals=3)
    with ServerClient(server.base_url, sleep=pauses.append) as client:
        client.flush_cache()
    assert len(pauses) == 3


def test_flush_gives_up_in_the_end(start: Start) -> None:
    server = start(flush_refusals=100)
    with (
        ServerClient(server.base_url, sleep=lambda _: None) as client,
        pytest.raises(ServerError, match=r"POST http://127.0.0.1:\d+/flush_cache: HTTP 400: Flush cache failed"),
    ):
        client.flush_cache(attempts=4)


@pytest.mark.parametrize(
    ("answers", "message", "status"), [("error", "HTTP 500: .*told to answer 500", 500), ("garbage", "not JSON", None)]
)
def test_bad_answer_is_an_error_that_quotes_it(start: Start, answers: str, message: str, status: int | None) -> None:
    with start(answers=answers).client() as client, pytest.raises(ServerError, match=message) as error:
        client.generate(text="hello", sampling_params=GREEDY)
    assert error.value.status == status


def test_nobody_there_is_an_error_with_the_address() -> None:
    port = ports.free_port()
    with ServerClient(f"http://127.0.0.1:{port}") as client:
        assert not client.health()
        with pytest.raises(ServerError, match=f"GET http://127.0.0.1:{port}/server_info: ConnectionError"):
            client.server_info()


def test_every_call_has_a_time_out(start: Start) -> None:
    with (
        start(tokens_per_second=1.0).client() as client,
        pytest.raises(ServerError, match="/generate: ReadTimeout"),
    ):
        client.generate(text="slow", sampling_params=GREEDY, timeout=0.2)


@pytest.mark.parametrize("prompt", [{"text": ""}, {"input_ids": []}, {}, {"text": "a", "input_ids": [1]}])
def test_prompts_that_take_a_server_down_are_not_sent(prompt: dict[str, object]) -> None:
    with ServerClient("http://127.0.0.1:1") as client, pytest.raises(ValueError, match=r"prompt|exactly one"):
        client.generate(**prompt)  # type: ignore[arg-type]


def test_a_batch_is_asked_as_it_stands_and_answered_in_order(start: Start) -> None:
    with start().client() as client:
        batch = client.ask({"text": ["one", "another"], "sampling_params": GREEDY})
        alone = [client.generate(text=text, sampling_params=GREEDY) for text in ("one", "another")]
    assert isinstance(batch, list)
    assert [answer["output_ids"] for answer in batch] == [answer["output_ids"] for answer in alone]


def test_an_answer_to_a_batch_that_is_no_json_is_an_error(start: Start) -> None:
    with start(answers="garbage").client() as client, pytest.raises(ServerError, match="/generate: not JSON"):
        client.ask({"text": ["one"]})
