"""Text goes into the small model and comes out of it unchanged, in every script, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpgate.engine.tokenizer import (
    ALPHABET,
    EOS_ID,
    IM_END_ID,
    IM_START_ID,
    PAD_ID,
    SPECIAL_TOKENS,
    VOCAB_SIZE,
    tokenizer_files,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    transformers = pytest.importorskip("transformers")
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    for name, text in tokenizer_files().items():
        (folder / name).write_text(text, encoding="utf-8")
    return transformers.AutoTokenizer.from_pretrained(folder)


def test_a_token_is_a_byte(tokenizer: Any) -> None:
    assert tokenizer.encode("Az 0\n") == list(b"Az 0\n")
    assert len(tokenizer) == VOCAB_SIZE


@pytest.mark.parametrize(
    "text", ["", " ", "  two  spaces ", "tab\tand\r\nlines", "naïve", "жук", "漢字", "🦊 ok", "\x00"]
)
def test_every_script_comes_back(tokenizer: Any, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokens == list(text.encode())
    assert tokenizer.decode(tokens) == text


def test_any_text_comes_back(tokenizer: Any) -> None:
    @given(st.text().filter(lambda text: "<|" not in text))
    def comes_back(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    comes_back()


def test_any_answer_survives_decoding_and_encoding_token_by_token(tokenizer: Any) -> None:
    @given(st.lists(st.sampled_from(ALPHABET)))
    def survives(tokens: list[int]) -> None:
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        assert text.isascii() and (text.isprintable())
        assert tokenizer.encode(text) == tokens

    survives()


def test_an_answer_cannot_spell_a_special_token() -> None:
    assert not any(set(token.encode()) <= set(ALPHABET) for token in SPECIAL_TOKENS)


def test_special_tokens_are_one_token_each(tokenizer: Any) -> None:
    assert [tokenizer.encode(token) for token in SPECIAL_TOKENS] == [[EOS_ID], [IM_START_ID], [IM_END_ID], [PAD_ID]]
    assert tokenizer.eos_token_id == EOS_ID
    assert tokenizer.pad_token_id == PAD_ID


def test_a_conversation_becomes_a_prompt(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
