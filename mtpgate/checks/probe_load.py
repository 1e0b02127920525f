"""Probes of several requests at once, and of requests that are given up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

from mtpgate.checks.answers import finish_reason
from mtpgate.checks.facts import Facts
from mtpgate.checks.probing import PROMPT, Asked, NotAsked, ProbeFailed, body, require_same, whole_answer, whole_answers
from mtpgate.checks.sanity import check_output
from mtpgate.checks.wellness import require_idle

FIRST_WAVE = (14, 3, 8)
SECOND_WAVE = (6, 2)
"""Tokens of the answers: the second wave joins when the shortest of the first has left."""

MORE_THAN_RUN = 4
MOST_AT_ONCE = 256
"""A limit of thousands is not exceeded: that would be a load test."""
CROWD_TOKENS = 4

LONGEST_GIVEN_UP = 2000
LENGTH_LEFT = 64
"""Of the context, for prompt and what speculation reserves."""


def changing_batch(server: Asked, facts: Facts) -> str:
    """A batch that shrinks and grows while it runs; each answer is whole, and in float32 as it is alone."""
    requests = [body(f"{number}. {PROMPT}", length) for number, length in enumerate((*FIRST_WAVE, *SECOND_WAVE))]
    what = "an answer in a batch that shrinks and grows"
    first, second = requests[: len(FIRST_WAVE)], requests[len(FIRST_WAVE) :]
    with ThreadPoolExecutor(len(requests)) as pool:
        running = [pool.submit(whole_answer, server, what, request) for request in first]
        wait(running, return_when=FIRST_COMPLETED)
        running += [pool.submit(whole_answer, server, what, request) for request in second]
        found = [future.result() for future in running]
    if facts.exact:
        for request, given in zip(requests, found, strict=True):
            alone = whole_answer(server, "the same alone", request)
            require_same(f"{what}, {alone.output_tokens} tokens", alone.output_ids, given.output_ids)
    return f"{len(first)} requests, then {len(second)} more"


def more_than_run(server: Asked, facts: Facts) -> str:
    """More requests at once than run at once: the others wait, and all are answered."""
    limit = facts.max_running_requests
    if limit is None or limit + MORE_THAN_RUN > MOST_AT_ONCE:
        raise NotAsked(f"max_running_requests is {limit or 'not known'}, and this sends {MOST_AT_ONCE} at most")
    count = limit + MORE_THAN_RUN
    what = f"one of {count} requests at once (max_running_requests {limit})"
    whole_answers(server, what, [body(f"{number}: one, two,", CROWD_TOKENS) for number in range(count)])
    return f"{count} requests at once, {limit} of which run"


def abort(server: Asked, facts: Facts) -> str:
    """A client that goes away, and one that says so, leave nothing behind, and the next answer is as before."""
    length = min(LONGEST_GIVEN_UP, max((facts.context_length or LONGEST_GIVEN_UP) - LENGTH_LEFT, LENGTH_LEFT))
    before = whole_answer(server, "before the abort", body(PROMPT, CROWD_TOKENS))
    with server.stream(body(PROMPT, length)) as events:
        if next(events, None) is None:
            raise ProbeFailed(f"a stream of {length} tokens: it has no event")
    require_idle(server, facts)
    rid = "mtpgate-abort"
    last: dict[str, object] = {}
    with server.stream({**body(PROMPT, length), "rid": rid}) as events:
        for number, event in enumerate(events):
            if number == 0:
                server.abort(rid)
            last = event
    meta = last.get("meta_info")
    meta = meta if isinstance(meta, dict) else {}
    if finish_reason(meta) != "abort":
        raise ProbeFailed(
            f"/abort_request in mid-stream: expected finish_reason 'abort', found {finish_reason(meta)!r} after "
            f"{meta.get('completion_tokens')} of {length} tokens"
        )
    _require_sane_so_far(last, meta)
    after = whole_answer(server, "after the abort", body(PROMPT, CROWD_TOKENS))
    if facts.exact:
        require_same("the same prompt before and after an abort", before.output_ids, after.output_ids)
    return f"cut after the first event, and aborted after {meta.get('completion_tokens')} of {length} tokens"


def _require_sane_so_far(last: Mapping[str, object], meta: Mapping[str, object]) -> None:
    """What was said of an answer until it was given up."""
    text, ids, counted = last.get("text"), last.get("output_ids"), meta.get("completion_tokens")
    findings = check_output(
        "the aborted answer",
        text if isinstance(text, str) else "",
        ids if isinstance(ids, Sequence) else (),
        counted=counted if isinstance(counted, int) else 0,
        finish_reason="abort",
        allowed_reasons=("abort",),
        meta=meta,
    )
    if findings:
        raise ProbeFailed("; ".join(map(str, findings)))
