"""What one answer's counts say of its verify steps, and the identities that they must satisfy.

An answer of N tokens with V verify steps and C correct drafts (``completion_tokens``, ``spec_verify_ct``,
``spec_num_correct_drafts``; SGLang 0.5.23) is made up so:

* the prefill yields 1 token, without a verify step; so does the prefill after each of R retractions
  (``num_retractions``), which computes the request's cache again;
* a verify step yields the drafts that it accepts, 0 to num_steps, and 1 bonus token: V + C tokens in all;
* the last step is cut where the answer ends: up to num_steps of its tokens are dropped after they were counted, never
  all, for it would not have run.

Hence, exactly:

    N - 1 - R = V + C - cut            with 0 <= cut <= num_steps
    sum over i of h_i = V              h_i: steps that accepted i drafts (``spec_correct_drafts_histogram``)
    sum over i of i * h_i = C          and h_i = 0 for i > num_steps
    V - 1 <= N - 1 - R <= V * (num_steps + 1)

(The last line is loose by one step: without C, a step that was scheduled before the end was known cannot be told.)

A server that counts the bonus token as a draft reports C + V for C: it breaks the first identity in every answer of
more than num_steps steps. One whose steps are lost from V, or whose tokens are lost from N, breaks it likewise. Where C
and h are missing (older versions), the last line remains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mtpgate.load.measurement import Arrival


@dataclass(frozen=True)
class StepCounts:
    """The counts of one answer; None where the server does not say."""

    tokens: int
    verify_steps: int | None
    correct: int | None = None
    proposed: int | None = None
    histogram: tuple[int, ...] | None = None
    """Verify steps by the number of drafts that they accepted."""
    retractions: int = 0

    @classmethod
    def of(cls, tokens: int, meta: Mapping[str, object]) -> StepCounts:
        """From an answer's ``meta_info``; a count of another type counts as missing."""
        return cls(
            tokens,
            count(meta, "spec_verify_ct"),
            count(meta, "spec_num_correct_drafts"),
            count(meta, "spec_num_proposed_drafts"),
            _histogram(meta.get("spec_correct_drafts_histogram")),
            count(meta, "num_retractions") or 0,
        )

    @property
    def verified(self) -> int:
        """Tokens that came from verify steps."""
        return self.tokens - 1 - self.retractions

    @property
    def nothing_accepted(self) -> bool:
        """No step yielded more than its bonus token, nor accepted a draft by the server's own count."""
        return bool(self.verify_steps) and self.verified <= (self.verify_steps or 0) and not self.correct

    def objections(self, num_steps: int) -> Iterator[str]:
        """Each identity that does not hold, with its numbers."""
        steps, correct = self.verify_steps or 0, self.correct
        made = f"{self.tokens} tokens in {steps} verify steps"
        if self.verified > steps * (num_steps + 1):
            yield f"{made} is more than the {num_steps + 1} a step that num_steps {num_steps} allows"
        if self.verified < steps - 1:
            yield f"{made} is less than one token a step"
        if correct is not None:
            cut = steps + correct - self.verified
            prefills = 1 + self.retractions
            if not 0 <= cut <= num_steps:
                yield (
                    f"{steps} verify steps and {correct} correct drafts make {steps + correct} tokens, and the prefill "
                    f"{prefills}; the answer has {self.tokens}, and the cut last step explains 0 to {num_steps} fewer"
                )
            if self.proposed is not None and correct > self.proposed:
                yield f"{correct} correct drafts of {self.proposed} that were proposed"
        if self.histogram is not None:
            yield from self._histogram_objections(self.histogram, steps, num_steps)

    def _histogram_objections(self, histogram: Sequence[int], steps: int, num_steps: int) -> Iterator[str]:
        most = max((drafts for drafts, times in enumerate(histogram) if times), default=0)
        if most > num_steps:
            yield f"the histogram has a step with {most} correct drafts, num_steps is {num_steps}"
        if sum(histogram) != steps:
            yield f"the histogram has {sum(histogram)} steps, spec_verify_ct is {steps}"
        drafts = sum(number * times for number, times in enumerate(histogram))
        if self.correct is not None and drafts != self.correct:
            yield f"the histogram has {drafts} correct drafts, spec_num_correct_drafts is {self.correct}"


def derived_histogram(counts: StepCounts, num_steps: int, arrivals: Sequence[Arrival] = ()) -> tuple[int, ...] | None:
    """The histogram of a server that gives none, where the other counts determine it; None where they do not.

    With one draft a step, C says it all. Otherwise the stream does, if it had one event for the prefill and one for
    each verify step (at high concurrency reads merge events); the cut last step counts with what is left of it.
    """
    steps = counts.verify_steps or 0
    if not steps:
        return None
    if num_steps == 1 and counts.correct is not None and 0 <= counts.correct <= steps:
        return (steps - counts.correct, counts.correct)
    sizes = [after.completion_tokens - before.completion_tokens for before, after in pairwise(arrivals)]
    if len(sizes) != steps or arrivals[0].completion_tokens != 1 or not all(1 <= n <= num_steps + 1 for n in sizes):
        return None
    found = Counter(size - 1 for size in sizes)
    return tuple(found[drafts] for drafts in range(max(found) + 1))


def count(meta: Mapping[str, object], key: str) -> int | None:
    """A count of ``meta_info``; None if it is missing or no number of things."""
    value = meta.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _histogram(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(isinstance(times, int) and times >= 0 for times in value):
        return None
    return tuple(value)
