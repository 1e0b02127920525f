"""A team's own prompts: the forms that are read, and what is said of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mtpgate.errors import UsageError
from mtpgate.load.prompt_files import MOST_PROMPTS, read_prompts


def written(folder: Path, text: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_lines_of_all_forms(tmp_path: Path) -> None:
    lines = [
        {"id": "code-1", "kind": "code", "text": "def f("},
        {"prompt": "Why?"},
        {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"}]},
        {
            "id": "x",
            "conversations": [
                {"from": "human", "value": "Hi"},
                {"from": "gpt", "value": "Hello."},
                {"from": "human", "value": "And?"},
                {"from": "gpt", "value": "left out"},
            ],
        },
    ]
    found = read_prompts(written(tmp_path, "\n".join(map(json.dumps, lines)) + "\n\n"))
    assert [(prompt.id, prompt.kind) for prompt in found] == [
        ("code-1", "code"),
        ("own-2", "own"),
        ("own-3", "own"),
        ("own-x", "own"),
    ]
    assert found[2].text == "System: Be short.\nUser: Hello\nAssistant:"
    assert found[3].text == "User: Hi\nGpt: Hello.\nUser: And?\nAssistant:"


def test_a_sharegpt_file_is_one_list(tmp_path: Path) -> None:
    content = [{"id": "a", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello."}]}]
    assert [prompt.text for prompt in read_prompts(written(tmp_path, json.dumps(content, indent=1)))] == ["Hi"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no prompt in it"),
        ("{", ":1: not JSON"),
        ('{"text": "a"}\n{"txet": "b"}', ":2: expected"),
        ("[1]", ":1: expected"),
        ("[{", "not JSON"),
        ('{"text": ""}', "takes SGLang's server down"),
        ('{"text": 3}', ":1: expected"),
        ('{"conversations": [{"from": "gpt", "value": "a"}]}', ":1: expected"),
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}', "two prompts have the id"),
        ('{"text": "x"}\n' * (MOST_PROMPTS + 1), f"at most {MOST_PROMPTS}"),
    ],
)
def test_another_form_is_refused_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=r"prompts\.jsonl") as refused:
        read_prompts(written(tmp_path, text))
    assert words in str(refused.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_prompts(tmp_path / "nowhere.jsonl")
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"text": "\xff"}')
    with pytest.raises(UsageError, match="not UTF-8"):
        read_prompts(path)
