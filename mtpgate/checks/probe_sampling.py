"""The probe of sampling: are tokens drawn from the model's distribution? :mod:`mtpgate.checks.sampling` has the test.

Greedy answers say nothing of this: with speculation, a verify step that samples accepts drafts at random, and makes up
for those that it refuses. Answers are sampled at once; then each is given back as a prompt, and the model's own
log-probabilities (its prefill's, without a draft or a sampler) say what it was to be drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence

from mtpgate.checks.answers import Answer, answer_of
from mtpgate.checks.facts import Facts
from mtpgate.checks.logprobs import Position, forced_positions
from mtpgate.checks.probing import ANSWER_SECONDS, Asked, NotAsked, ProbeFailed, body, require_sane, shown
from mtpgate.checks.sampling import judge_samples
from mtpgate.server.client import ServerError

PROMPT = "Once upon a time there was"
TEMPERATURE = 1.5
"""Neither 1, which an engine that ignores it has too, nor so low that a good model always says the same."""
TOP_K = 8
ANSWERS = 32
TOKENS = 12
LARGEST_OVERLOOKED = 2.0
"""Factor of the temperature that must be found for the test to say anything."""


def sampling(server: Asked, facts: Facts) -> str:
    """Sampled tokens follow the model's distribution at that temperature, over the likeliest."""
    if facts.greedy_because is not None:
        raise NotAsked(facts.greedy_because)
    answers = _sampled(server)
    places = _weighed(server, answers)
    report = judge_samples(places, temperature=TEMPERATURE, top_k=TOP_K)
    if not report.ok:
        raise ProbeFailed(report.message())
    if report.finds[0] < 1 / LARGEST_OVERLOOKED or report.finds[1] > LARGEST_OVERLOOKED:
        raise NotAsked(f"the model is too sure of what follows for so few tokens to say anything: {report.message()}")
    return report.message()


def _sampled(server: Asked) -> list[Answer]:
    request = body(PROMPT, TOKENS, temperature=TEMPERATURE, top_k=TOP_K, top_p=1.0, min_p=0.0, n=ANSWERS)
    given = server.ask(request, ANSWER_SECONDS)
    if not isinstance(given, list) or len(given) != ANSWERS:
        raise ProbeFailed(f"n={ANSWERS}: expected a list of {ANSWERS} answers, found {shown(str(given))}")
    answers = [answer_of(f"sampled answer {number}", item) for number, item in enumerate(given, start=1)]
    for answer in answers:
        # What is drawn from a hot distribution need not be a text, but its counts are as asked.
        if (answer.output_tokens, len(answer.output_ids), answer.finish_reason) != (TOKENS, TOKENS, "length"):
            require_sane(answer.prompt_id, request, answer)
            raise ProbeFailed(f"{answer.prompt_id}: asked for {TOKENS} tokens, got {answer.output_tokens}")
    return answers


def _weighed(server: Asked, answers: Sequence[Answer]) -> list[tuple[Position, ...]]:
    """Each answer's tokens as the model's prefill weighs them."""
    prompt = server.tokenize(PROMPT)
    request: dict[str, object] = {
        "input_ids": [[*prompt, *answer.output_ids] for answer in answers],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": len(prompt) - 1,
        "top_logprobs_num": TOP_K,
    }
    given = server.ask(request, ANSWER_SECONDS)
    if not isinstance(given, list) or len(given) != len(answers):
        raise ServerError(f"expected a list of {len(answers)} answers, got {shown(str(given))}")
    weighed = []
    for answer, item in zip(answers, given, strict=True):
        places = forced_positions(answer.prompt_id, answer_of(answer.prompt_id, item).meta, len(answer.output_ids))
        if tuple(place.chosen[1] for place in places) != answer.output_ids:
            raise ServerError(f"{answer.prompt_id}: the server weighed other tokens than it was given")
        weighed.append(places)
    return weighed
