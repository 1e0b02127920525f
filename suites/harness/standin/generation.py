"""One answer of ``/generate``: its growing text and the ``meta_info`` that SGLang 0.5.23 gives with it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from answers import Model, TiedModel, TurnedModel, decode, encode, steps
from requesting import tokens_of

if TYPE_CHECKING:
    from server import StandIn

LONG = 200
LONG_TOKENS_PER_SECOND = 500.0
"""Of streams above ``LONG`` tokens: there must be time to give them up."""


def generation(standin: StandIn, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The states of one answer: text and output_ids are cumulative, the last one carries the counts of speculation."""
    began = time.time()
    behaviour = standin.behaviour
    speculative = standin.launch.speculative
    parameters = request.get("sampling_params") or {}
    prompt = tokens_of(request)
    count = int(parameters.get("max_new_tokens", 128))
    wrong = behaviour.answers in ("wrong", "wrong_speculative" if speculative else "wrong_plain")
    wrong = wrong or (behaviour.probes == "other_second" and standin.seen_before(prompt))
    told = int(request.get("top_logprobs_num") or 0)
    answer = _Answer(prompt, wrong_at=count // 2 if wrong else None, forced=forced(parameters), told=told)
    # The real one's verify step on a CPU is greedy.
    if parameters.get("temperature") and not (speculative and standin.behaviour.device == "cpu"):
        factor = 2.0 if behaviour.probes == "samples_hot" else 1.0
        answer.sampled = (parameters["temperature"] * factor, parameters.get("top_k", 20))
    sizes = list(steps(count, behaviour.accept_length, standin.launch.num_steps if speculative else None))
    identifier = uuid.uuid4().hex
    if behaviour.answers == "ties_speculative":
        answer.model = TurnedModel(prompt) if speculative else TiedModel(prompt)
    for number, size in enumerate(sizes):
        if behaviour.tokens_per_second or (request.get("stream") and count > LONG):
            time.sleep(size / (behaviour.tokens_per_second or LONG_TOKENS_PER_SECOND))
        answer.extend(size)
        unstoppable = behaviour.probes == "ignores_stop" and not answer.forced
        stopped = None if unstoppable else answer.stop(parameters)
        if request.get("rid") in standin.aborted and behaviour.probes != "ignores_abort":
            stopped = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        last = stopped is not None or number == len(sizes) - 1
        meta: dict[str, Any] = {
            "id": identifier,
            "finish_reason": (stopped or {"type": "length", "length": count}) if last else None,
            "prompt_tokens": len(prompt),
            "weight_version": "default",
            "num_retractions": behaviour.retractions,
            "reasoning_tokens": 0,
            "completion_tokens": len(answer.output),
            "cached_tokens": 0,
            "cached_tokens_details": None,
            "dp_rank": None,
        }
        if number == 0 or not request.get("stream"):
            meta["response_sent_to_client_ts"] = time.time()
        if last:
            meta["weight_versions"] = [{"version": "default", "start": 0, "end": len(answer.output)}]
            meta["e2e_latency"] = time.time() - began
            if speculative:
                meta |= speculation(standin, len(answer.output), sizes[: number + 1])
        if request.get("return_logprob"):
            meta |= answer.probabilities(request)
        yield {"text": answer.text, "output_ids": list(answer.output), "meta_info": meta}
        if last:
            return


def forced(parameters: dict[str, Any]) -> list[int]:
    """The answer that a JSON schema leaves: the first value of its enum."""
    if "json_schema" not in parameters:
        return []
    values = json.loads(parameters["json_schema"]).get("enum") or [{}]
    return encode(json.dumps(values[0]))


class _Answer:
    """The tokens of one answer with their log-probabilities."""

    def __init__(self, prompt: list[int], wrong_at: int | None, forced: list[int], told: int) -> None:
        self.forced = forced
        self.sampled: tuple[float, int] | None = None
        """Temperature and top_k; None: greedy."""
        self.hidden = 0
        """Characters of the stop string, which the text leaves out."""
        self.prompt = prompt
        self.wrong_at = wrong_at
        self.model = Model(prompt)
        self.told = max(told, 2)
        self.output: list[int] = []
        self.logprobs: list[list[Any]] = []
        self.top: list[list[list[Any]]] = []

    def extend(self, size: int) -> None:
        for _ in range(size):
            ranked = self.model.top(self.told)
            token = ranked[1][1] if len(self.output) == self.wrong_at else ranked[0][1]
            if self.sampled is not None:
                token = self.model.drawn(*self.sampled)
            if self.forced and len(self.output) < len(self.forced):
                token = self.forced[len(self.output)]
            self.logprobs.append([self.model.logprob(token), token, None])
            self.top.append([[logprob, known, None] for logprob, known in ranked])
            self.output.append(token)
            self.model.push(token)

    @property
    def text(self) -> str:
        text = decode(self.output)
        return text[: len(text) - self.hidden]

    def stop(self, parameters: dict[str, Any]) -> dict[str, Any] | None:
        """The finish reason, if the answer has reached its end; what a step yielded beyond it is dropped."""
        if self.forced:
            if len(self.output) < len(self.forced):
                return None
            self.output = self.output[: len(self.forced)]
            return {"type": "stop", "matched": None}
        strings = parameters.get("stop") or []
        tokens = [] if parameters.get("ignore_eos") else parameters.get("stop_token_ids") or []
        for length in range(1, len(self.output) + 1) if strings or tokens else ():
            text = decode(self.output[:length])
            found = next((string for string in strings if string in text), None)
            if found is None and self.output[length - 1] not in tokens:
                continue
            self.hidden = len(found or "x")
            matched = self.output[length - 1] if found is None else found
            self.output = self.output[:length]
            return {"type": "stop", "matched": matched}
        return None

    def probabilities(self, request: dict[str, Any]) -> dict[str, Any]:
        """As SGLang: from ``logprob_start_len`` on, the first of them without a value."""
        start = request.get("logprob_start_len", -1)
        start = len(self.prompt) if start is None or start < 0 else start
        inputs: list[Any] = []
        input_top: list[Any] = []
        model = type(self.model)(self.prompt[:start])
        for position, token in enumerate(self.prompt[start:]):
            first = position == 0
            inputs.append([None if first else model.logprob(token), token, None])
            told = model.top(self.told)
            input_top.append(None if first else [[logprob, known, None] for logprob, known in told])
            model.push(token)
        texts = request.get("return_text_in_logprobs")
        result: dict[str, Any] = {
            "input_token_logprobs": inputs,
            "output_token_logprobs": [
                [logprob, token, decode([token]) if texts else None] for logprob, token, _ in self.logprobs
            ],
            "output_token_logprobs_length": len(self.logprobs),
        }
        if request.get("top_logprobs_num"):
            result |= {"input_top_logprobs": input_top, "output_top_logprobs": list(self.top)}
        return result


def speculation(standin: StandIn, completion: int, sizes: list[int]) -> dict[str, Any]:
    """The counts of the verify steps; ``sizes[0]`` is the prefill's token."""
    accepted = [size - 1 for size in sizes[1:]]
    verify = len(accepted)
    proposed = verify * (standin.launch.num_steps or 1)
    return {
        "spec_accept_rate": sum(accepted) / proposed if proposed else 0.0,
        "spec_accept_length": completion / verify if verify else 0.0,
        "spec_num_correct_drafts": sum(accepted),
        "spec_num_proposed_drafts": proposed,
        "spec_verify_ct": verify,
        "spec_correct_drafts_histogram": [accepted.count(number) for number in range(max(accepted, default=0) + 1)],
    }
