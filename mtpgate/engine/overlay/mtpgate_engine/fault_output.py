"""Faults between the verify step and the answer: a token that gets lost, a stop that is not noticed, a wrong count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .steps import EveryNth

Hook = tuple[str, Callable[..., Any]]

_RESULTS = "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
_RESOLVE = f"{_RESULTS}._resolve_spec_v2_tokens"
_REQUEST = "sglang.srt.managers.schedule_batch.Req"


def drop_bonus(every: int) -> tuple[Hook, ...]:
    """In each N-th verify step that accepted a draft token, the bonus token after the drafts is left out of the answer.

    The engine goes on from it nevertheless, so an answer is the right one with gaps.
    """
    steps = EveryNth(every)

    def dropped(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        answers = original(*args, **kwargs)
        if any(len(tokens) > 1 for tokens in answers) and steps.due():
            return [tokens[:-1] if len(tokens) > 1 else tokens for tokens in answers]
        return answers

    return ((_RESOLVE, dropped),)


def count_high() -> tuple[Hook, ...]:
    """Each verify step counts one more correct draft than there was, in the answers' figures and in the log's."""

    def counted(original: Callable[..., Any], processor: Any, result: Any, batch: Any) -> Any:
        before = [request.spec_verify_ct for request in batch.reqs]
        answers = original(processor, result, batch)
        for i, request in enumerate(batch.reqs):
            if request.spec_verify_ct == before[i]:
                continue
            correct = result.num_correct_drafts_per_req_cpu[i]
            request.spec_num_correct_drafts += 1
            request.spec_correct_drafts_histogram[correct] -= 1
            request.update_spec_correct_drafts_histogram(correct + 1)
            result.num_correct_drafts += 1
        return answers

    return ((_RESOLVE, counted),)


def ignore_stop() -> tuple[Hook, ...]:
    """A stop string, stop token or end of text in a verify step of several tokens is not noticed."""
    return (
        (f"{_REQUEST}._check_token_based_finish", unseen_token),
        (f"{_REQUEST}._check_str_based_finish", unseen_string),
    )


def unseen_token(original: Callable[..., Any], request: Any, tokens: Any) -> bool:
    """Around the search for a stop token in the tokens of one step."""
    return len(tokens) == 1 and bool(original(request, tokens))


def unseen_string(original: Callable[..., Any], request: Any, tokens: int = 1) -> bool:
    """Around the search for a stop string in the text up to the last ``tokens`` tokens, those of one step.

    SGLang searches some tokens before these too: what was overlooked once stays so until it is out of that window.
    """
    if not original(request, tokens):
        return False
    written = len(request.output_ids)
    window = written - request._stop_match_tail_len(tokens)
    if tokens > 1:
        request.mtpgate_overlooked = written
    elif window >= getattr(request, "mtpgate_overlooked", 0):
        return True
    request.finished_reason = request.finished_len = None
    return False
