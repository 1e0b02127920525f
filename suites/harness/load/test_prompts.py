"""The prompts are fixed, real text, exact in length, and share no beginnings."""

from __future__ import annotations

import pytest

from mtpgate.errors import UsageError
from mtpgate.load.prompts import (
    DISTINCT_TOKENS,
    KINDS,
    filling_prompts,
    first_prompts,
    kind_of,
    load_prompts,
    long_prompt,
    parity_prompts,
)


def by_bytes(text: str) -> list[int]:
    return list(text.encode())


def by_words_with_bos(text: str) -> list[int]:
    return [1, *(hash_of(word) for word in text.split())]


def hash_of(word: str) -> int:
    return 2 + sum(ord(letter) * 31**place for place, letter in enumerate(word)) % 50_000


@pytest.mark.parametrize("tokenize", [by_bytes, by_words_with_bos])
@pytest.mark.parametrize(("input_tokens", "count"), [(16, 20), (256, 48), (256, 300), (5000, 3)])
def test_load_prompts_have_the_exact_length_and_distinct_beginnings(tokenize, input_tokens, count):
    prompts = load_prompts(tokenize, input_tokens, count)
    assert [len(prompt.input_ids) for prompt in prompts] == [input_tokens] * count
    assert len({prompt.input_ids[:DISTINCT_TOKENS] for prompt in prompts}) == count
    assert len({prompt.id for prompt in prompts}) == count


def test_the_kinds_take_turns():
    prompts = load_prompts(by_bytes, 64, 14)
    assert [prompt.kind for prompt in prompts] == list(KINDS) * 2
    assert [kind_of(prompt.id) for prompt in prompts] == [prompt.kind for prompt in prompts]


def test_a_longer_load_extends_a_shorter_one():
    assert load_prompts(by_bytes, 64, 40)[:9] == load_prompts(by_bytes, 64, 9)


def test_only_one_bos_is_in_a_prompt_longer_than_its_text():
    (prompt,) = load_prompts(by_words_with_bos, 3000, 1)
    assert prompt.input_ids.count(1) == 1


def test_load_prompts_are_the_words_of_the_text():
    assert bytes(load_prompts(by_bytes, 22, 1)[0].input_ids) == b"The ferry left the nor"


@pytest.mark.parametrize(("input_tokens", "count"), [(0, 3), (5, 0)])
def test_lengths_below_one_are_refused(input_tokens, count):
    with pytest.raises(UsageError, match="input_tokens >= 1 and count >= 1"):
        load_prompts(by_bytes, input_tokens, count)


def test_a_tokenizer_that_tells_nothing_apart_is_refused():
    with pytest.raises(UsageError, match="only 1 of 3 prompts"):
        load_prompts(lambda text: [7] * len(text), 16, 3)


def test_a_tokenizer_without_tokens_is_refused():
    with pytest.raises(UsageError, match="no tokens"):
        load_prompts(lambda text: [], 16, 3)


def test_parity_prompts_cover_kinds_and_lengths():
    prompts = parity_prompts()
    lengths = [len(prompt.text.encode()) for prompt in prompts]
    assert len({prompt.id for prompt in prompts}) == len(prompts) == 16
    assert {prompt.kind for prompt in prompts} == {"short", *KINDS}
    assert min(lengths) >= 1 and min(lengths) < 5 and 256 < max(lengths) < 320
    assert all(kind_of(prompt.id) == prompt.kind for prompt in prompts)


def test_a_batch_is_filled_up_with_other_prompts_of_mixed_lengths():
    more = filling_prompts(12)
    assert filling_prompts(5) == more[:5]
    assert len({prompt.text for prompt in (*parity_prompts(), *more)}) == 16 + 12
    assert len({prompt.id for prompt in (*parity_prompts(), *more)}) == 16 + 12
    assert {prompt.kind for prompt in more} == set(KINDS)
    assert len({len(prompt.text) for prompt in more}) > 3


@pytest.mark.parametrize("tokenize", [by_bytes, by_words_with_bos])
@pytest.mark.parametrize("tokens", [100, 5000, 20_000])
def test_a_long_prompt_has_as_many_tokens_as_wanted_and_few_more(tokenize, tokens):
    found = len(tokenize(long_prompt(tokenize, tokens).text))
    assert tokens <= found <= tokens * 1.25


def test_a_long_prompt_needs_a_tokenizer_that_returns_tokens():
    with pytest.raises(UsageError, match="no tokens"):
        long_prompt(lambda text: [], 10)


def test_first_prompts_refuse_to_send_one_twice():
    prompts = load_prompts(by_bytes, 16, 3)
    assert first_prompts(prompts, 2) == prompts[:2]
    with pytest.raises(UsageError, match="4 requests need 4 different prompts, got 3"):
        first_prompts(prompts, 4)
