"""Does a server count the tokens of one answer alike wherever it tells them?

Tokens/s and accept length are made of these counts, so three askings for the same prompt and the same number of tokens
(``ignore_eos``) must agree: the events of a native stream, ``meta_info`` of a native answer with log-probabilities, and
``usage`` of ``/v1/completions``. Each must say what was asked for; the text need not be equal, which is parity's
question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mtpgate.checks.answers import answer_of
from mtpgate.checks.sanity import check_output, check_record
from mtpgate.load.measurement import RequestRecord

PROMPT_ID = "counts"


def disagreements(
    *,
    asked: int,
    prompt_tokens: int,
    streamed: RequestRecord,
    native: object,
    completion: Mapping[str, object],
) -> Iterator[str]:
    """What is wrong with the three, one line each.

    ``asked`` and ``prompt_tokens`` are what was sent; ``streamed`` is the record of the stream, ``native`` the decoded
    JSON of ``/generate``, ``completion`` that of ``/v1/completions``.

    Raises:
        ServerError: ``native`` is not what ``/generate`` returns.
    """
    if streamed.error is not None:
        yield f"stream: {streamed.error}"
    elif streamed.output_tokens != asked:
        yield f"stream: the events count {streamed.output_tokens} tokens, {asked} were asked for"
    yield from (f"stream: {finding}" for finding in check_record(streamed))
    yield from _native(asked, prompt_tokens, native)
    yield from _usage(asked, prompt_tokens, completion)


def _native(asked: int, prompt_tokens: int, native: object) -> Iterator[str]:
    answer = answer_of(PROMPT_ID, native)
    if answer.output_tokens != asked:
        yield f"meta_info: completion_tokens is {answer.output_tokens}, {asked} were asked for"
    if answer.meta.get("prompt_tokens") != prompt_tokens:
        yield f"meta_info: prompt_tokens is {answer.meta.get('prompt_tokens')}, {prompt_tokens} were sent"
    logprobs = answer.meta.get("output_token_logprobs")
    if isinstance(logprobs, list) and len(logprobs) != asked:
        yield f"meta_info: {len(logprobs)} log-probabilities for {asked} tokens"
    yield from (
        f"meta_info: {finding}"
        for finding in check_output(
            PROMPT_ID,
            answer.text,
            answer.output_ids,
            counted=answer.output_tokens,
            finish_reason=answer.finish_reason,
            allowed_reasons=("length",),
            meta=answer.meta,
        )
    )


def _usage(asked: int, prompt_tokens: int, completion: Mapping[str, object]) -> Iterator[str]:
    usage = completion.get("usage")
    if not isinstance(usage, Mapping):
        yield f"usage: missing in /v1/completions: {str(completion)[:240]}"
        return
    expected = {
        "completion_tokens": asked,
        "prompt_tokens": prompt_tokens,
        "total_tokens": asked + prompt_tokens,
    }
    for name, number in expected.items():
        if usage.get(name) != number:
            yield f"usage: {name} is {usage.get(name)}, expected {number}"
    choices = completion.get("choices")
    reason = choices[0].get("finish_reason") if isinstance(choices, list) and choices else None
    if reason != "length":
        yield f"usage: finish_reason is {reason!r} instead of 'length'"
