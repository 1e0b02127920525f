"""The control: the reference against itself. How much rounding alone moves a choice, and so which gap is a near-tie.

Two tokens turn where their log-probabilities are closer than what the shape of a batch moves them. The reference
answers each prompt alone, in batches, and by teacher forcing (its prefill), and where it was launched again, then too:
where the contexts agree, the lead of the best token over the second would be the same in exact arithmetic, and the
largest difference between any two is what rounding does on this machine, in this type. A verify step has another batch
shape still, so a cell is allowed :data:`SAFETY` times that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mtpgate.checks.answers import Answers
from mtpgate.checks.logprobs import Position, output_positions

SAFETY = 2.0
"""The largest of some hundred differences is 3 to 4 of their standard deviations (they are close to normal). A cell
brings more positions and other shapes: twice that is 6 to 8, beyond what rounding comes to."""
CLEAR = 0.5
"""Of the median lead: a tolerance beyond this share would take what a fault chose for rounding, so the control fails. A
reference that moves so much by itself may be the broken side."""
LEAST = 1e-6
"""Below this float32 itself does not tell two log-probabilities apart."""

Table = Mapping[str, tuple[Position, ...]]
"""Positions by prompt id."""


@dataclass(frozen=True)
class Control:
    """What the reference's own answers say of rounding. Log-probabilities are natural logarithms."""

    tolerance: float
    """A gap up to this is a near-tie."""
    noise: float
    """The largest difference of one lead between two shapes."""
    positions: int
    """Positions that were seen in two shapes at least."""
    lead: float = math.inf
    """The median lead of the best token over the second."""
    turned: tuple[str, ...] = ()
    """Where the reference itself chose otherwise in another shape."""
    unlikely: tuple[str, ...] = ()
    """Where the reference chose a token that by its own log-probabilities was not the best: greedy decoding is broken
    there, in the reference."""
    tables: Mapping[str, Table] = field(default_factory=dict)
    """By composition: the likeliest tokens at each position of the reference's answers."""

    @property
    def usable(self) -> bool:
        """Whether a near-tie can be told from a fault by it."""
        return self.tolerance <= CLEAR * self.lead and not self.unlikely

    def message(self) -> str:
        noisy = f"; it turned by itself at {', '.join(self.turned[:3])}" if self.turned else ""
        told = f"rounding moves a lead by {self.noise:.2g} at most ({self.positions} positions){noisy}"
        if self.usable:
            return told
        if self.unlikely:
            return (
                f"the reference does not choose its own best token: {'; '.join(self.unlikely[:3])}. The reference may "
                "be the broken side: nothing can be said of the other cells"
            )
        return (
            f"control too noisy: {told}, and the median lead is {self.lead:.2g}. The reference may be the broken side: "
            "nothing can be said of the other cells"
        )


def table_of(ranked: Answers) -> Table:
    """The positions of answers that were asked for with log-probabilities. ServerError if they have none."""
    return {name: output_positions(name, answer.meta) for name, answer in ranked.answers.items()}


def calibrate(tables: Mapping[str, Table]) -> Control:
    """The control from tables of the same prompts in several shapes (``single``, ``batch``, ``forced`` ...)."""
    noise, seen = 0.0, 0
    turned: list[str] = []
    names = list(tables)
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            for prompt_id in tables[first].keys() & tables[second].keys():
                one, other = tables[first][prompt_id], tables[second][prompt_id]
                for place, (left, right) in enumerate(zip(one, other, strict=False)):
                    difference = _moved(left, right)
                    noise, seen = max(noise, difference), seen + 1
                    if left.best != right.best or left.chosen[1] != right.chosen[1]:
                        turned.append(f"{prompt_id} {place} ({first}, {second})")
                        break  # From here on the contexts differ.
    leads = [position.lead for table in tables.values() for positions in table.values() for position in positions]
    told = sorted(lead for lead in leads if math.isfinite(lead))
    lead = told[len(told) // 2] if told else math.inf
    tolerance = max(SAFETY * noise, LEAST)
    return Control(tolerance, noise, seen, lead, tuple(turned), tuple(_unlikely(tables, tolerance)), dict(tables))


def _unlikely(tables: Mapping[str, Table], tolerance: float) -> Iterable[str]:
    """The first such token of each answer."""
    for name, table in tables.items():
        for prompt_id, positions in table.items():
            far = (place for place, position in enumerate(positions) if is_unlikely(position, tolerance))
            place = next(far, None)
            if place is not None:
                gap = positions[place].gap(positions[place].chosen[1])
                yield f"{prompt_id} at {place} ({name}, gap {gap}, near-ties end at {tolerance:.2g})"


def is_unlikely(position: Position, tolerance: float) -> bool:
    """Whether the token that stands there is further from the best one than a near-tie."""
    return position.gap(position.chosen[1]).value > tolerance


def _moved(left: Position, right: Position) -> float:
    """How much the lead of ``left``'s best token differs in ``right``, whatever leads there: the most over the others
    that both tell."""
    _, best = left.top[0]
    there = right.logprob(best)
    moved = [
        abs((left.top[0][0] - logprob) - (there - other))
        for logprob, token in left.top[1:]
        if there is not None and (other := right.logprob(token)) is not None
    ]
    return max((one for one in moved if math.isfinite(one)), default=0.0)


def largest_gap(positions: Sequence[Position]) -> tuple[float, int]:
    """The largest gap of a chosen token in ``positions``, and where it is; ``(0.0, 0)`` without any."""
    gaps = [(position.gap(position.chosen[1]).value, place) for place, position in enumerate(positions)]
    return max(gaps, default=(0.0, 0))
