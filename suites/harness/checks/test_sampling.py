"""The distribution of sampled tokens: how often the test is wrong about a right engine, and what it finds in a wrong
one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import special

from mtpgate.checks.logprobs import Position
from mtpgate.checks.sampling import ALPHA, SamplingReport, judge_samples

TEMPERATURE, TOP_K = 1.5, 8
ANSWERS, LENGTH = 32, 12
RUNS = 60

Probabilities = np.ndarray
Sampler = Callable[[Probabilities], Probabilities]
"""From the probabilities that tokens are to be drawn with to those that they are drawn with, [places, top_k]."""


def right(probabilities: Probabilities) -> Probabilities:
    return probabilities


def at(factor: float) -> Sampler:
    """An engine whose temperature is off by this factor."""

    def sample(probabilities: Probabilities) -> Probabilities:
        powers = probabilities ** (1 / factor)
        return powers / powers.sum(1, keepdims=True)

    return sample


def often_greedy(probabilities: Probabilities) -> Probabilities:
    """A verify step that takes the draft's token in a third of the cases whatever was to be drawn."""
    best = np.zeros_like(probabilities)
    best[:, 0] = 1.0
    return 2 / 3 * probabilities + best / 3


def logits(random: np.random.Generator, spread: float) -> np.ndarray:
    """Log-probabilities of the likeliest tokens of each place, as a model with this spread of logits has them."""
    whole = random.normal(0.0, spread, (ANSWERS * LENGTH, 200))
    whole -= special.logsumexp(whole, axis=1, keepdims=True)
    return np.sort(whole, axis=1)[:, ::-1][:, :TOP_K]


def judged(
    random: np.random.Generator, sampler: Sampler = right, spread: float = 3.0, rounding: float = 0.0
) -> SamplingReport:
    """``rounding``: standard deviation by which the engine's logits differ from those that the model tells."""
    weights = logits(random, spread)
    exact = weights + random.normal(0.0, rounding, weights.shape)
    drawn_from = sampler(special.softmax(exact / TEMPERATURE, axis=1))
    ranks = (drawn_from.cumsum(1) < random.random((len(weights), 1))).sum(1).clip(max=TOP_K - 1)
    places = [
        Position(tuple((float(logprob), token) for token, logprob in enumerate(row)), (float(row[rank]), int(rank)))
        for row, rank in zip(weights, ranks, strict=True)
    ]
    answers = [places[number * LENGTH : (number + 1) * LENGTH] for number in range(ANSWERS)]
    return judge_samples(answers, temperature=TEMPERATURE, top_k=TOP_K)


def test_the_evidence_against_a_right_engine_is_bounded_as_promised() -> None:
    """Markov's inequality, at levels that 60 runs can see: E reaches 10 in a tenth of the runs at most."""
    random = np.random.default_rng(1)
    evidence = [judged(random).evidence for _ in range(RUNS)]
    for level in (2.0, 10.0):
        share = np.mean([value >= math.log(level) for value in evidence])
        assert share <= 1 / level
    assert max(evidence) < math.log(2 / ALPHA)


def test_rounding_as_in_bfloat16_does_not_add_up() -> None:
    random = np.random.default_rng(6)
    evidence = [judged(random, rounding=0.1).evidence for _ in range(15)]
    assert max(evidence) < math.log(10), "as without"


@pytest.mark.parametrize(("factor", "words"), [(0.5, "temperature (0.75|1.05)"), (2.0, "temperature (2.25|3.00|6.00)")])
def test_half_and_double_the_temperature_are_found_and_named(factor: float, words: str) -> None:
    random = np.random.default_rng(2)
    reports = [judged(random, at(factor)) for _ in range(8)]
    assert not any(report.ok for report in reports)
    assert all(re.search(f"they look like {words} instead of 1.5", report.message()) for report in reports)


def test_the_power_that_is_reported_is_the_one_that_it_has() -> None:
    """Each of the two temperatures that it names is found in about nine of ten runs."""
    random = np.random.default_rng(3)
    low, high = judged(random).finds
    assert 0.5 < low < 1 < high < 2
    for factor in (low, high):
        found = np.mean([not judged(random, at(factor)).ok for _ in range(25)])
        # Three standard errors.
        assert found == pytest.approx(0.9, abs=0.18)


def test_a_verify_step_that_accepts_too_readily_is_found() -> None:
    random = np.random.default_rng(4)
    report = judged(random, often_greedy)
    assert "sampled tokens do not follow the model's distribution" in report.message()
    assert report.best_share > report.best_expected + 0.1


def test_a_model_that_is_sure_of_everything_leaves_nothing_to_find() -> None:
    low, high = judged(np.random.default_rng(5), spread=500.0).finds
    assert (low < 0.5, high > 2) == (True, True)


def places(*chosen: int) -> list[Position]:
    """Places with the same eight likeliest tokens, of which these are drawn; from 8 on they are none of them."""
    weights = [-1.0, -1.5, -2.0, -2.5, -3.0, -3.5, -4.0, -4.5]
    top = tuple((logprob, token) for token, logprob in enumerate(weights))
    return [Position(top, (weights[token] if token < TOP_K else -9.0, token)) for token in chosen]


def judge(*answers: list[Position]) -> SamplingReport:
    return judge_samples(answers, temperature=TEMPERATURE, top_k=TOP_K)


def test_a_token_that_could_not_be_drawn_is_found_at_once() -> None:
    report = judge(places(0, 1), places(0, 99))
    assert report.evidence == math.inf
    assert (
        "1 sampled tokens are none of the 8 likeliest, the first is token 99: top_k is not kept to" in report.message()
    )


def test_a_tie_for_the_last_of_the_likeliest_is_no_fault() -> None:
    (tied,) = places(7)
    tied = replace(tied, chosen=(tied.top[-1][0] - 0.01, 99))
    assert judge([*places(0), tied], places(0, 1)).ok


def test_answers_that_are_all_the_same_are_found_though_each_is_a_likely_one() -> None:
    report = judge(*[places(0, 1, 0, 2)] * 8)
    assert "all 8 sampled answers are one and the same" in report.message()


def test_two_answers_that_agree_are_no_fault() -> None:
    assert judge(places(0, 1), places(0, 1)).ok


@pytest.mark.parametrize("answers", [[], [[]], [places(0)[:1]]])
def test_too_little_to_judge_is_refused(answers: list[list[Position]]) -> None:
    top_k = TOP_K + 1 if answers and answers[0] else TOP_K
    with pytest.raises(ValueError, match="expected sampled tokens"):
        judge_samples(answers, temperature=TEMPERATURE, top_k=top_k)
