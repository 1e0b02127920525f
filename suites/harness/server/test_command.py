"""A launch is an argument list."""

from __future__ import annotations

import pytest

from mtpgate.errors import UsageError
from mtpgate.server.command import build_command

FLAGS = ("--tp-size", "4", "--mem-fraction-static", "0.6")


def build(entry: tuple[str, ...]) -> tuple[str, ...]:
    return build_command(entry, FLAGS, model_path="/models/a b", host="127.0.0.1", port=30001)


def test_plain_entry_gets_model_address_and_flags() -> None:
    assert build(("python", "-m", "sglang.launch_server")) == (
        *("python", "-m", "sglang.launch_server", "--model-path", "/models/a b"),
        *("--host", "127.0.0.1", "--port", "30001", *FLAGS),
    )


def test_template_is_filled_in_place() -> None:
    entry = ("docker", "run", "-p{port}:{port}", "image", "serve", "--model-path={model}", "--host={host}", "{args}")
    assert build(entry) == (
        *("docker", "run", "-p30001:30001", "image", "serve", "--model-path=/models/a b", "--host=127.0.0.1"),
        *FLAGS,
    )


def test_other_braces_are_left_alone() -> None:
    assert build(("run", "--json", '{"a": 1}', "{port}", "{args}"))[2] == '{"a": 1}'


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ((), "empty"),
        (("run", "{port}"), "{args}"),
        (("run", "{port}", "x{args}"), "{args}"),
        (("run", "{args}"), "{port}"),
    ],
)
def test_unusable_entries_are_usage_errors(entry: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(entry)
