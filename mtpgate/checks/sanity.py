"""Is an answer a text at all? Thin checks of what is wrong whatever the prompt was.

Looping text raises acceptance and tokens/s, so an answer that fails here must not count as a speed. Thresholds are
chosen so that ordinary text cannot reach them: a list repeats its frame, but not the very same tokens 12 times in a
row. A model that loops by itself loops in the reference cell too: :func:`not_in_reference` leaves those out, which
says whose fault it is. It does not make the answer fit to be counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mtpgate.checks.answers import Answers, finish_reason
from mtpgate.checks.counts import count
from mtpgate.load.measurement import RequestRecord

STUCK_TOKENS = 24
"""The same token this often in a row is a stuck decoder; the longest run in ordinary text is a ruled line."""

LONGEST_PERIOD = 16
"""Loops with up to this many tokens in a lap are looked for."""

LOOP_LAPS = 12
"""The same lap this often in a row is a loop."""

REPLACEMENT = "\ufffd"
"""What invalid bytes decode to. An answer cut inside a character ends in some, at most 3 (UTF-8 has 4 bytes)."""
CUT_CHARACTER = 3

LOGPROBS = ("output_token_logprobs", "input_token_logprobs")

What = Literal["empty", "invalid_text", "stuck_token", "loop", "token_count", "length", "finish_reason", "nan"]


@dataclass(frozen=True)
class SanityFinding:
    """One thing that is wrong with one answer."""

    prompt_id: str
    what: What
    detail: str

    def __str__(self) -> str:
        return f"{self.prompt_id}: {self.what}: {self.detail}"


def check_record(record: RequestRecord) -> tuple[SanityFinding, ...]:
    """Findings of one request of a load."""
    return check_output(
        record.prompt_id,
        record.text,
        record.output_ids,
        counted=record.output_tokens,
        finish_reason=finish_reason(record.meta),
        meta=record.meta,
    )


def check_answers(given: Answers) -> tuple[SanityFinding, ...]:
    """Findings of answers that were not streamed."""
    return tuple(
        finding
        for answer in given.answers.values()
        for finding in check_output(
            answer.prompt_id,
            answer.text,
            answer.output_ids,
            counted=answer.output_tokens,
            finish_reason=answer.finish_reason,
            asked=given.max_new_tokens,
            meta=answer.meta,
        )
    )


def check_output(
    prompt_id: str,
    text: str,
    output_ids: Sequence[int],
    *,
    counted: int,
    finish_reason: str,
    allowed_reasons: Sequence[str] = ("length", "stop"),
    asked: int | None = None,
    meta: Mapping[str, object] | None = None,
) -> tuple[SanityFinding, ...]:
    """Findings of one answer.

    ``counted``: its tokens as the server counted them, in a stream by its last event; ``asked``: ``max_new_tokens``,
    None if that is checked elsewhere; ``meta``: its ``meta_info``, whose own count and log-probabilities are looked at.
    """
    meta = meta or {}
    problems: list[tuple[What, str]] = []
    if counted == 0 or (counted > 1 and not text.strip()):
        problems.append(("empty", f"{counted} tokens, text {text[:40]!r}"))
    if REPLACEMENT in _without_cut_character(text):
        problems.append(("invalid_text", f"U+FFFD at character {text.index(REPLACEMENT)} of {len(text)}"))
    loop = find_loop(output_ids)
    if loop is not None:
        problems.append(loop)
    if output_ids and len(output_ids) != counted:
        problems.append(("token_count", f"{len(output_ids)} token ids, completion_tokens {counted}"))
    in_meta = count(meta, "completion_tokens")
    if in_meta is not None and in_meta != counted:
        problems.append(("token_count", f"the stream ended at {counted} tokens, meta_info says {in_meta}"))
    if asked is not None and (counted > asked or (finish_reason == "length" and counted != asked)):
        problems.append(("length", f"{counted} tokens of {asked} that were asked for, ended by {finish_reason!r}"))
    if finish_reason not in allowed_reasons:
        problems.append(("finish_reason", f"{finish_reason!r} instead of {' or '.join(allowed_reasons)}"))
    problems += _not_finite(meta)
    return tuple(SanityFinding(prompt_id, what, detail) for what, detail in problems)


def _not_finite(meta: Mapping[str, object]) -> Iterable[tuple[What, str]]:
    """Log-probabilities that are no numbers: the logits were NaN. JSON has no NaN, so they arrive as null too."""
    for name in LOGPROBS:
        rows = meta.get(name)
        values = [row[0] for row in rows if isinstance(row, list | tuple) and row] if isinstance(rows, list) else []
        # The first input token has none.
        judged = values[1:] if name.startswith("input") else values
        wrong = [position for position, value in enumerate(judged) if not _finite(value)]
        if wrong:
            yield "nan", f"{len(wrong)} of {len(judged)} {name} are no finite numbers, the first at {wrong[0]}"


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def find_loop(tokens: Sequence[int]) -> tuple[What, str] | None:
    """A token stuck for STUCK_TOKENS, or a lap of up to LONGEST_PERIOD tokens repeated LOOP_LAPS times; or None."""
    for period in range(1, LONGEST_PERIOD + 1):
        needed = STUCK_TOKENS - 1 if period == 1 else period * (LOOP_LAPS - 1)
        run = 0
        for position in range(period, len(tokens)):
            run = run + 1 if tokens[position] == tokens[position - period] else 0
            if run >= needed:
                start = position - run - period + 1
                if period == 1:
                    return "stuck_token", f"token {tokens[position]} {STUCK_TOKENS} times in a row from {start} on"
                return "loop", f"the same {period} tokens {LOOP_LAPS} times in a row from {start} on"
    return None


def not_in_reference(
    findings: Iterable[SanityFinding], reference: Iterable[SanityFinding]
) -> tuple[SanityFinding, ...]:
    """The findings that the reference cell does not have for the same prompt: what the cell itself brought in."""
    known = {(finding.prompt_id, finding.what) for finding in reference}
    return tuple(finding for finding in findings if (finding.prompt_id, finding.what) not in known)


def _without_cut_character(text: str) -> str:
    trailing = len(text) - len(text.rstrip(REPLACEMENT))
    return text[: len(text) - min(trailing, CUT_CHARACTER)]
