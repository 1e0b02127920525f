"""The prompts of the suite: real text of several kinds, fixed, so that acceptance and answers mean something.

Random tokens mislead for speculative cells (the draft head has never seen such text), and a single kind of text hides
faults that need another, so each prompt has a *kind* and figures are reported per kind as well. The texts lie beside
this module: ``texts/kinds/KIND.txt`` for the load, ``texts/parity.jsonl`` for the parity suite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count as numbers
from itertools import cycle
from pathlib import Path

from mtpgate.errors import UsageError

Tokenize = Callable[[str], Sequence[int]]

TEXTS = Path(__file__).parent / "texts"

KINDS = ("prose", "code", "arithmetic", "list", "json", "script", "chat")
"""The kinds of the load's prompts, in the order in which they take turns."""

DISTINCT_TOKENS = 8
"""No two load prompts agree in their first 8 tokens, so a prefix cache has at most 7 tokens to share."""

SHORTEST_START = 20
"""Lines with fewer characters (a closing brace) are no place to begin a prompt."""

FILLING_CHARACTERS = (60, 12, 120, 30, 90)
"""Lengths of the prompts that fill up a batch: mixed, and not in step with the seven kinds."""

MANY_TRIES = 50
"""Beginnings tried in vain, for each prompt asked for, before the tokenizer is held to be unusable."""


@dataclass(frozen=True)
class Prompt:
    """One prompt as text."""

    id: str
    kind: str
    text: str


@dataclass(frozen=True)
class TokenPrompt:
    """One prompt as token ids, of an exact length. ``id`` is ``KIND-NUMBER``."""

    id: str
    kind: str
    input_ids: tuple[int, ...]


def kind_of(prompt_id: str) -> str:
    """The kind that a prompt id names: all before its first hyphen."""
    return prompt_id.partition("-")[0]


def parity_prompts() -> tuple[Prompt, ...]:
    """Sixteen prompts of several kinds and lengths (1 to about 310 bytes), always the same ones."""
    lines = (TEXTS / "parity.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(Prompt(**json.loads(line)) for line in lines)


def filling_prompts(count: int) -> tuple[Prompt, ...]:
    """``count`` further prompts as text, the kinds and FILLING_CHARACTERS taking turns, always the same ones."""
    texts = zip(range(count), _beginnings(), cycle(FILLING_CHARACTERS), strict=False)
    return tuple(Prompt(f"{kind}-fill-{number}", kind, text[:characters]) for number, (kind, text), characters in texts)


def long_prompt(tokenize: Tokenize, tokens: int) -> Prompt:
    """A prompt of at least ``tokens`` tokens and not many more: the texts of all kinds, over and over if need be.

    Raises UsageError if the tokenizer returns no tokens.
    """
    text = "\n".join((TEXTS / "kinds" / f"{kind}.txt").read_text(encoding="utf-8") for kind in KINDS)
    whole = len(tokenize(text))
    if not whole:
        raise UsageError("the tokenizer returned no tokens for a non-empty text")
    # By the mean length of a token: the kinds differ, so the first guess may be short of it.
    characters = tokens * len(text) // whole
    while True:
        found = (text * (characters // len(text) + 1))[:characters]
        if len(tokenize(found)) >= tokens:
            return Prompt("long-chunked", "long", found)
        characters += max(characters // 16, 1)


def load_prompts(tokenize: Tokenize, input_tokens: int, count: int) -> tuple[TokenPrompt, ...]:
    """``count`` prompts of exactly ``input_tokens`` tokens, the kinds taking turns.

    A prompt begins at a line of its kind's text and runs on through the text, around its end if need be. The first
    prompts are the same whatever ``count`` is, so a longer load extends a shorter one.

    Raises:
        UsageError: ``input_tokens`` or ``count`` is below 1, or the tokenizer maps different beginnings to the same
            tokens (it is not the one of the model, or ``input_tokens`` is too small for that many prompts).
    """
    if input_tokens < 1 or count < 1:
        raise UsageError(f"load prompts need input_tokens >= 1 and count >= 1, got {input_tokens} and {count}")
    prompts: list[TokenPrompt] = []
    seen: set[tuple[int, ...]] = set()
    for tries, (kind, text) in enumerate(_beginnings()):
        if len(prompts) == count:
            break
        if tries > MANY_TRIES * count:
            raise UsageError(
                f"only {len(prompts)} of {count} prompts of {input_tokens} tokens begin differently under this "
                "tokenizer: use the model's own tokenizer, longer inputs or fewer requests"
            )
        tokens = _cut(tokenize, text, input_tokens)
        if tokens[:DISTINCT_TOKENS] in seen:
            continue
        seen.add(tokens[:DISTINCT_TOKENS])
        prompts.append(TokenPrompt(id=f"{kind}-{len(prompts)}", kind=kind, input_ids=tokens))
    return tuple(prompts)


def _cut(tokenize: Tokenize, text: str, input_tokens: int) -> tuple[int, ...]:
    tokens = tokenize(text)
    if not tokens:
        raise UsageError("the tokenizer returned no tokens for a non-empty text")
    # The text is repeated before it is tokenized: a tokenizer that adds a BOS would add one at each seam.
    laps = -(-input_tokens // len(tokens))
    while len(tokens) < input_tokens:
        tokens = tokenize(text * laps)
        laps *= 2
    return tuple(tokens[:input_tokens])


def _beginnings() -> Iterator[tuple[str, str]]:
    """(kind, text from a beginning on), the kinds in turn, without end; later laps are told apart by a number."""
    sources = {kind: list(_rotations((TEXTS / "kinds" / f"{kind}.txt").read_text(encoding="utf-8"))) for kind in KINDS}
    for number in numbers():
        lap_of_kinds, turn = divmod(number, len(KINDS))
        texts = sources[KINDS[turn]]
        lap, start = divmod(lap_of_kinds, len(texts))
        yield KINDS[turn], texts[start] if lap == 0 else f"{number}. {texts[start]}"


def _rotations(text: str) -> Iterable[str]:
    offset = 0
    for line in text.splitlines(keepends=True):
        if len(line) > SHORTEST_START and not line[0].isspace():
            yield text[offset:] + text[:offset]
        offset += len(line)


def first_prompts(prompts: Sequence[TokenPrompt], requests: int) -> tuple[TokenPrompt, ...]:
    """The first ``requests`` prompts.

    Raises:
        UsageError: there are fewer; sending one twice would measure the prefix cache.
    """
    chosen = tuple(prompts[:requests])
    if len(chosen) < requests:
        raise UsageError(f"{requests} requests need {requests} different prompts, got {len(chosen)}")
    return chosen
