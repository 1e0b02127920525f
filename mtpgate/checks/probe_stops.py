"""Probes of the ends of answers: stop strings and stop tokens at each token in turn, and the model's end of text.

A verify step yields several tokens, and a stop may be any of them. So the same answer is asked for once for each of its
tokens, with a stop that this token completes: between them they fall into every place of a verify step. The requests
run at once, or a dozen answers would take as many times as long.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from mtpgate.checks.answers import Answer
from mtpgate.checks.facts import Facts
from mtpgate.checks.probing import (
    PROMPT,
    Asked,
    Body,
    ProbeFailed,
    answer,
    at_once,
    body,
    require_same,
    require_sane,
    shown,
    whole_answer,
)

TOKENS = 12
"""Three to six verify steps of the usual sizes."""
STRONG_BIAS = 100.0
REPLACEMENT = "\ufffd"
SHOWN_PLACES = 8
MOST_PLACES = 16
"""Asked for at once; where tokens are not known, an answer has more characters than that."""


def stop_string(server: Asked, facts: Facts) -> str:
    """An answer ends where the stop string is complete, whichever token of a verify step completes it."""
    expected, texts = _long_answer(server)
    stops = _some(stop_strings(texts or list(expected.text)))
    if not stops:
        raise ProbeFailed(f"the answer of {TOKENS} tokens has no text to stop at: {shown(expected.text)}")
    requests: dict[str, Body] = {
        f"stop string {stop!r}, complete at {place} of {shown(expected.text)}": body(PROMPT, TOKENS, stop=[stop])
        for place, stop in stops.items()
    }
    given = at_once(server, requests)
    wrong: dict[int, str] = {}
    for (place, stop), (what, found) in zip(stops.items(), given.items(), strict=True):
        tokens = expected.output_ids[: place if texts else len(found.output_ids)]
        words = _string_fault(what, stop, expected.text, tokens, found, exact=facts.exact)
        wrong |= {place: words} if words else {}
        if words is None:
            require_sane(what, requests[what], found)
    _require_none("stop strings", "token" if texts else "character", wrong, stops)
    return f"stopped at strings that {'token' if texts else 'character'} {_listed(stops)} completes"


def end_of_text(server: Asked, facts: Facts) -> str:
    """An answer ends with the first token that ends a text, whichever of a verify step it is, and says why."""
    expected, _ = _long_answer(server)
    stops = stop_tokens(expected.output_ids)
    requests: dict[str, Body] = {
        f"stop_token_ids [{stop}], token {place} of the answer without": body(
            PROMPT, TOKENS, whole=False, stop_token_ids=[stop]
        )
        for place, stop in stops.items()
    }
    given = at_once(server, requests)
    wrong: dict[int, str] = {}
    for (place, stop), (what, found) in zip(stops.items(), given.items(), strict=True):
        words = _token_fault(what, stop, expected.output_ids[:place], found, exact=facts.exact)
        wrong |= {place: words} if words else {}
        if words is None:
            require_sane(what, requests[what], found)
    _require_none("stop tokens", "token", wrong, stops)
    said = f"stopped at token {_listed(stops)}"
    if facts.eos_id is None:
        return f"{said}; the model's end of text is not known here, and was not asked for"
    what = f"a bias that makes the end of text (token {facts.eos_id}) the first token"
    bias = {str(facts.eos_id): STRONG_BIAS}
    ended = answer(server, what, body(PROMPT, TOKENS, whole=False, logit_bias=bias))
    words = _token_fault(what, facts.eos_id, [facts.eos_id], ended, exact=True)
    if words:
        raise ProbeFailed(words)
    return f"{said}, and at the end of text, token {facts.eos_id}"


def stop_strings(texts: Sequence[str]) -> dict[int, str]:
    """By the 1-based place of a token, the shortest string that this token is the first to complete.

    ``texts``: of the answer's tokens, one by one. A token that ends inside a character completes none.
    """
    whole = "".join(texts)
    found = {}
    for place, end in enumerate(itertools.accumulate(map(len, texts)), start=1):
        begins = range(end - 1, -1, -1)
        piece = next((whole[begin:end] for begin in begins if whole.find(whole[begin:end]) == begin), None)
        if texts[place - 1] and piece is not None and REPLACEMENT not in piece:
            found[place] = piece
    return found


def stop_tokens(tokens: Sequence[int]) -> dict[int, int]:
    """By its 1-based place, each token that the answer has not had before."""
    return {at + 1: token for at, token in enumerate(tokens) if token not in tokens[:at]}


def _some(stops: Mapping[int, str]) -> dict[int, str]:
    """At most MOST_PLACES of them, spread over the answer."""
    step = -(-len(stops) // MOST_PLACES) or 1
    return dict(list(stops.items())[::step])


def _long_answer(server: Asked) -> tuple[Answer, list[str]]:
    """The answer without a stop, and the texts of its tokens; empty where they are not known."""
    request = {**body(PROMPT, TOKENS), "return_logprob": True, "return_text_in_logprobs": True}
    given = whole_answer(server, "the prompt without a stop", request)
    told = given.meta.get("output_token_logprobs")
    texts = [str(row[2]) for row in told if isinstance(row, list) and len(row) > 2] if isinstance(told, list) else []
    # Tokens that are not texts by themselves (a character in several, a space that is only between) do not add up.
    return given, texts if "".join(texts) == given.text else []


def _string_fault(what: str, stop: str, text: str, tokens: Sequence[int], found: Answer, *, exact: bool) -> str | None:
    """What is wrong with an answer that was to be ``tokens`` and to end at ``stop`` in ``text``.

    Where it need not be the answer without a stop to the last bit, it must still be without the stop string.
    """
    until = text[: text.index(stop)]
    wrong = (found.text, found.finish_reason) != (until, "stop") if exact else stop in found.text
    if wrong:
        seen = f"found {shown(found.text)} and {found.finish_reason!r}"
        return f"{what}: expected {until!r} and finish_reason 'stop', {seen}"
    return _difference(what, tokens, found) if exact else None


def _token_fault(what: str, stop: int, expected: Sequence[int], found: Answer, *, exact: bool) -> str | None:
    ended = found.finish_reason == "stop"
    if not exact and not ended and stop not in found.output_ids:
        return None  # Another answer, which does not have the token.
    if not ended or stop in found.output_ids[:-1]:
        return (
            f"{what}: expected finish_reason 'stop' after {len(expected)} tokens, found {found.finish_reason!r} after "
            f"{len(found.output_ids)}: {shown(found.text)}"
        )
    return _difference(what, expected, found) if exact else None


def _difference(what: str, expected: Sequence[int], found: Answer) -> str | None:
    try:
        require_same(what, expected, found.output_ids)
    except ProbeFailed as failed:
        return str(failed)
    return None


def _require_none(kind: str, unit: str, wrong: Mapping[int, str], stops: Mapping[int, object]) -> None:
    if wrong:
        places = f"{kind} at {len(wrong)} of {len(stops)} places of an answer ({unit} {_listed(wrong)})"
        some = "" if len(wrong) == len(stops) else " (others do: with speculation, look at stops inside a verify step)"
        raise ProbeFailed(f"{places} do not end it as they must{some}; the first: {next(iter(wrong.values()))}")


def _listed(places: Mapping[int, object]) -> str:
    shown_places = [str(place) for place in places][:SHOWN_PLACES]
    return ", ".join(shown_places) + (", ..." if len(places) > SHOWN_PLACES else "")
