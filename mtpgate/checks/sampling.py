"""Do sampled tokens follow the distribution that they were to be drawn from? A test whose false alarms are bounded.

Method. Each sampled token was to be drawn from ``p``: the model's probabilities at that place, to the power of
1/temperature, over the ``top_k`` likeliest tokens. A list of alternatives says how an engine that samples wrongly would
draw instead (another temperature, the best token too often, ...), each a distribution ``q`` over the same tokens. The
evidence is the likelihood ratio of their even mixture to ``p`` over all tokens:

    E = mean over alternatives of  prod over tokens of  q(token) / p(token)

If the tokens are drawn from ``p``, E has the expectation 1 whatever the texts they led to, so by Markov's inequality
it reaches 1/alpha with probability alpha at most (an e-value; Shafer, Testing by betting, JRSS A 184, 2021). That holds
for any number of tokens and needs no large-sample approximation: the false-alarm rate is known, not estimated.

Answers that are all one and the same are told apart too: their tokens may be likely ones, but that ``n`` draws agree
has the probability P(answer)^(n-1) only. Both tests get half of alpha.

Power. For another temperature f * T the logarithm of E grows by sum of KL(q_f, p); what is found with probability 0.9
follows from that and its variance (:func:`found_factors`), and is reported with each result.

Assumptions. ``p`` comes from the model's own log-probabilities by teacher forcing, which no draft, verify step or
sampler takes part in. Rounding shifts it by some 1e-5 in float32 and 1e-2 in bfloat16, at random: that does not add up.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from mtpgate.checks.logprobs import Position

ALPHA = 1e-4
"""False alarms a cell: one night in a hundred with a hundred cells."""
POWER = 0.9
TEMPERATURE_FACTORS = (0.1, 0.5, 0.7, 0.85, 1.2, 1.5, 2.0, 4.0)
GREEDY_SHARES = (0.1, 0.3)
"""Of the tokens, taken greedily instead of drawn: what a verify step that accepts too readily does."""
TIE = 0.05
"""Difference of log-probabilities below which the last of the likeliest tokens may be another one; bfloat16's rounding
of a logit around 10 is 0.04."""
SEARCHED = tuple(1.02**step for step in range(1, 200))
"""Factors from 1.02 to 50."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SamplingReport:
    """What the test came to. Logarithms are natural."""

    tokens: int
    answers: int
    evidence: float
    """Logarithm of E; infinite if a token was drawn that could not be."""
    looks_like: str
    """The alternative that explains the tokens best."""
    best_share: float
    """Tokens that were the likeliest at their place, of all."""
    best_expected: float
    finds: tuple[float, float]
    """Temperatures, as factors of the right one, at or beyond which the test fails with probability POWER; 0 and
    infinity where nothing that was tried would be found."""
    findings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.findings

    def message(self) -> str:
        """What is wrong, then the figures, and what would have been found."""
        low, high = self.finds
        figures = (
            f"{self.tokens} tokens of {self.answers} answers; {self.best_share:.0%} are the likeliest at their place, "
            f"{self.best_expected:.0%} expected; evidence against the model's distribution 10^{_tens(self.evidence)} "
            f"(10^{_tens(math.log(2 / ALPHA))} fails); would find a temperature of x{low:.2f} or less and x{high:.2f} "
            f"or more with probability {POWER:g}, at a false-alarm rate of {ALPHA:g}"
        )
        return "\n".join([*self.findings, figures])


def judge_samples(answers: Sequence[Sequence[Position]], *, temperature: float, top_k: int) -> SamplingReport:
    """Judge tokens that were sampled at ``temperature`` (above 0) from the ``top_k`` likeliest.

    ``answers`` are sampled for one prompt, independently and of one length; each token's :class:`Position` is of the
    model at temperature 1, with at least ``top_k`` tokens told.

    Raises ValueError if there is none, or fewer tokens are told.
    """
    places = [place for answer in answers for place in answer]
    if not places or any(len(place.top) < top_k for place in places):
        raise ValueError(f"expected sampled tokens with the {top_k} likeliest of each place, got {len(places)}")
    weights = np.array([[logprob for logprob, _ in place.top[:top_k]] for place in places])
    right = _normal(weights / temperature)
    ranks = [_rank(place, top_k) for place in places]
    beyond = [place for place, rank in zip(places, ranks, strict=True) if rank is None]
    drawn = np.array([rank or 0 for rank in ranks])
    ratios = {name: _picked(other - right, drawn) for name, other in _alternatives(weights, temperature).items()}
    sums = {name: float(ratio.sum()) for name, ratio in ratios.items()}
    evidence = math.inf if beyond else _mixture(list(sums.values()))
    looks_like = max(sums, key=lambda name: sums[name])
    findings = list(_findings(beyond, evidence, looks_like, top_k))
    findings += _all_the_same(answers, float(_picked(right, drawn)[: len(answers[0])].sum()))
    return SamplingReport(
        tokens=len(places),
        answers=len(answers),
        evidence=evidence,
        looks_like=looks_like,
        best_share=float(np.mean(drawn == 0)),
        best_expected=float(np.exp(right[:, 0]).mean()),
        finds=found_factors(weights, temperature),
        findings=tuple(findings),
    )


def found_factors(weights: Array, temperature: float) -> tuple[float, float]:
    """The temperatures nearest to the right one, below and above, that the test finds with probability POWER, as
    factors; 0 and infinity if none is found.

    ``weights`` [tokens, top_k] are log-probabilities at temperature 1. The texts are taken as they are: sampled at
    another temperature they would be others, of much the same spread.
    """
    right = _normal(weights / temperature)
    others = [other - right for other in _alternatives(weights, temperature).values()]

    def found(factor: float) -> bool:
        actual = np.exp(_normal(weights / (temperature * factor)))
        return any(_lower(actual, ratio) - math.log(len(others)) >= math.log(2 / ALPHA) for ratio in others)

    # A temperature that is further off is found more easily.
    low = bisect.bisect_left(SEARCHED, True, key=lambda factor: found(1 / factor))
    high = bisect.bisect_left(SEARCHED, True, key=found)
    return (
        1 / SEARCHED[low] if low < len(SEARCHED) else 0.0,
        SEARCHED[high] if high < len(SEARCHED) else math.inf,
    )


def _lower(actual: Array, ratio: Array) -> float:
    """What the sum of ``ratio`` over tokens drawn from ``actual`` exceeds with probability POWER."""
    mean = (actual * ratio).sum(1)
    variance = (actual * ratio**2).sum(1) - mean**2
    return float(mean.sum() - stats.norm.ppf(POWER) * math.sqrt(max(variance.sum(), 0.0)))


def _alternatives(weights: Array, temperature: float) -> Mapping[str, Array]:
    """Log-probabilities [tokens, top_k] of each way to sample wrongly, by its name."""
    right = _normal(weights / temperature)
    best = np.full_like(right, -math.inf)
    best[:, 0] = 0.0
    found = {
        f"temperature {temperature * factor:.2f} instead of {temperature:g}": _normal(weights / (temperature * factor))
        for factor in TEMPERATURE_FACTORS
    }
    for share in GREEDY_SHARES:
        found[f"{share:.0%} of the tokens taken greedily"] = np.logaddexp(
            right + math.log(1 - share), best + math.log(share)
        )
    # An engine that loses tokens that it accepted, or swaps rows, draws the unlikely too often without being hotter.
    found["a tenth of the tokens drawn evenly"] = np.logaddexp(right + math.log(0.9), math.log(0.1 / right.shape[1]))
    return found


def _findings(beyond: Sequence[Position], evidence: float, looks_like: str, top_k: int) -> Sequence[str]:
    if beyond:
        token = beyond[0].chosen[1]
        return [
            f"{len(beyond)} sampled tokens are none of the {top_k} likeliest, the first is token {token}: top_k "
            "is not kept to"
        ]
    if evidence >= math.log(2 / ALPHA):
        return [
            f"sampled tokens do not follow the model's distribution: they look like {looks_like} (10^"
            f"{_tens(evidence)} times likelier than as asked)"
        ]
    return []


def _all_the_same(answers: Sequence[Sequence[Position]], logprob: float) -> Sequence[str]:
    """``logprob``: of the first answer."""
    different = {tuple(place.chosen[1] for place in answer) for answer in answers}
    if len(different) == 1 and (len(answers) - 1) * logprob <= math.log(ALPHA / 2):
        return [f"all {len(answers)} sampled answers are one and the same: they are not drawn one by one"]
    return []


def _rank(place: Position, top_k: int) -> int | None:
    """Of the sampled token among the likeliest, 0 the best; None if it is none of them."""
    found = next((rank for rank, (_, token) in enumerate(place.top[:top_k]) if token == place.chosen[1]), None)
    if found is None and place.chosen[0] >= place.top[top_k - 1][0] - TIE:
        return top_k - 1
    return found


def _picked(rows: Array, columns: npt.NDArray[np.int64]) -> Array:
    picked: Array = rows[np.arange(len(rows)), columns]
    return picked


def _normal(weights: Array) -> Array:
    normal: Array = weights - special.logsumexp(weights, axis=1, keepdims=True)
    return normal


def _mixture(sums: Sequence[float]) -> float:
    return float(special.logsumexp(sums)) - math.log(len(sums))


def _tens(logarithm: float) -> str:
    return f"{logarithm / math.log(10):.1f}"
