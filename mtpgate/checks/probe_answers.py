"""Probes of single answers: the prefix cache, the lengths of answers, several of them, JSON, chat."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mtpgate.checks.answers import Answer, answer_of
from mtpgate.checks.facts import Facts
from mtpgate.checks.probing import (
    ANSWER_SECONDS,
    PROMPT,
    Asked,
    NotAsked,
    ProbeFailed,
    answer,
    body,
    is_refusal,
    require_same,
    require_sane,
    require_whole,
    shown,
    whole_answer,
)
from mtpgate.checks.sanity import check_output
from mtpgate.server.client import ServerError

TOKENS = 12
"""Enough for several verify steps; the answers of a slow machine take a second each."""
SHORT_LENGTHS = (1, 2, 3)
SAMPLES = 3
CHAT_TOKENS = 8

PREFIX = "The list of colours is: red, green, blue, yellow. "
ENDINGS = ("The first of them is", "Now count them:")

CHOICES: tuple[Mapping[str, Any], ...] = ({"ok": True}, {"ok": False}, {"no": 1})
"""What the schema allows. Written out: under an open schema a small model may fill its answer with white space."""
JSON_TOKENS = 32


def same_prompt_twice(server: Asked, facts: Facts) -> str:
    """An answer from the prefix cache is the one without. In a narrow type, two from the cache are the same."""
    server.flush_cache()
    first = whole_answer(server, "the same prompt again", body(PROMPT, TOKENS if facts.exact else 1))
    second = whole_answer(server, "the same prompt again", body(PROMPT, TOKENS))
    if facts.exact:
        require_same("the same prompt a second time, from the prefix cache", first.output_ids, second.output_ids)
    else:
        third = whole_answer(server, "the same prompt again", body(PROMPT, TOKENS))
        require_same("the same prompt a third time, cached as at the second", second.output_ids, third.output_ids)
    cached = second.meta.get("cached_tokens")
    return f"{TOKENS} tokens, {cached} of the prompt's {second.meta.get('prompt_tokens')} from the cache"


def shared_prefix(server: Asked, facts: Facts) -> str:
    """A prompt whose beginning another one has left in the cache is answered as with an empty cache."""

    def after_the_other() -> Answer:
        server.flush_cache()
        whole_answer(server, "a prompt with a shared prefix", body(PREFIX + ENDINGS[0], 1))
        return whole_answer(server, "another prompt with the same prefix", body(PREFIX + ENDINGS[1], TOKENS))

    found = after_the_other()
    if facts.exact:
        server.flush_cache()
        expected = whole_answer(server, "the same with an empty cache", body(PREFIX + ENDINGS[1], TOKENS))
    else:
        expected = after_the_other()
    require_same("a prompt with a cached prefix", expected.output_ids, found.output_ids)
    return f"{found.meta.get('cached_tokens')} tokens of the prefix from the cache"


def short_answers(server: Asked, facts: Facts) -> str:
    """max_new_tokens 1, 2 and 3 give the first tokens of the long answer, whatever a verify step yields."""
    if not facts.exact:
        whole_answer(server, "the prompt", body(PROMPT, 1))  # So that all that are compared are equally cached.
    expected = whole_answer(server, "the prompt without a stop", body(PROMPT, TOKENS))
    for length in SHORT_LENGTHS:
        found = whole_answer(server, f"max_new_tokens {length}", body(PROMPT, length))
        require_same(f"max_new_tokens {length}", expected.output_ids[:length], found.output_ids)
    return f"max_new_tokens {', '.join(map(str, SHORT_LENGTHS))}: as the answer of {TOKENS}"


def several_answers(server: Asked, facts: Facts) -> str:
    """n > 1 gives n answers, at temperature 0 all the same one."""
    request = body(PROMPT, TOKENS, n=SAMPLES)
    given = server.ask(request, ANSWER_SECONDS)
    if not isinstance(given, list) or len(given) != SAMPLES:
        raise ProbeFailed(f"n={SAMPLES}: expected a list of {SAMPLES} answers, found {shown(str(given))}")
    answers = [require_whole(f"n={SAMPLES}", request, answer_of(f"n={SAMPLES}", item)) for item in given]
    if facts.exact:
        for number, other in enumerate(answers[1:], start=2):
            require_same(f"n={SAMPLES}, answer {number}", answers[0].output_ids, other.output_ids)
    return f"{SAMPLES} answers of {TOKENS} tokens"


def json_schema(server: Asked, facts: Facts) -> str:
    """An answer under a JSON schema ends by itself and is a value that the schema allows."""
    schema = json.dumps({"enum": CHOICES})
    request = body(PROMPT, JSON_TOKENS, whole=False, json_schema=schema)
    found = answer(server, "a JSON schema", request)
    try:
        value = json.loads(found.text)
    except ValueError:
        value = None
    if value not in CHOICES or found.finish_reason != "stop":
        raise ProbeFailed(
            f"JSON schema {schema}: expected one of its values and finish_reason 'stop', found {shown(found.text)} "
            f"and {found.finish_reason!r}"
        )
    require_sane("a JSON schema", request, found)
    return f"{found.text} in {found.output_tokens} tokens"


def chat(server: Asked, facts: Facts) -> str:
    """A second turn that carries the first, twice: answered, the same both times, with the longer prompt counted."""
    turns = [{"role": "user", "content": "Name a colour."}]
    try:
        content, first = _turn(server, turns)
    except ServerError as error:
        if is_refusal(error) and "chat template" in str(error):
            raise NotAsked("the model has no chat template") from error
        raise
    turns += [{"role": "assistant", "content": content}, {"role": "user", "content": "Another?"}]
    if not facts.exact:
        _turn(server, turns)  # So that the two that are compared are equally cached.
    (again, second), (last, _) = (_turn(server, turns) for _ in range(2))
    if again != last:
        raise ProbeFailed(f"a second turn asked again: expected {shown(again)}, found {shown(last)}")
    if second <= first:
        raise ProbeFailed(f"a second turn: expected a prompt of more than {first} tokens, found {second}")
    return f"turns of {first} and {second} prompt tokens"


def _turn(server: Asked, messages: Sequence[Mapping[str, str]]) -> tuple[str, int]:
    """The answer's text and the prompt's tokens."""
    request = {
        "model": "default",
        "temperature": 0,
        "max_tokens": CHAT_TOKENS,
        "ignore_eos": True,
        "messages": list(messages),
    }
    given = server.chat(request, ANSWER_SECONDS)
    try:
        choice, usage = given["choices"][0], given["usage"]
        content, prompt, completion = choice["message"]["content"], usage["prompt_tokens"], usage["completion_tokens"]
    except (KeyError, IndexError, TypeError) as error:
        raise ProbeFailed(f"chat: {error!r} in {shown(str(given))}") from error
    what, reason = f"chat, {len(messages)} messages", choice.get("finish_reason")
    if completion != CHAT_TOKENS or reason != "length":
        raise ProbeFailed(
            f"{what}: asked for {CHAT_TOKENS} tokens, got {completion}, finish_reason {reason!r}: {shown(str(content))}"
        )
    # The interface tells no tokens; a model that reasons may have put all of its text elsewhere.
    findings = check_output(what, content or "-", (), counted=completion, finish_reason=reason)
    if findings:
        raise ProbeFailed("; ".join(map(str, findings)))
    return content or "", prompt
