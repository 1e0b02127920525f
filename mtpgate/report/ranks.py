"""Ranks that are alike, as one: grouped by their figures and named as a range (``TP0 to TP7``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def grouped(ranks: Iterable[T], figures: Callable[[T], Mapping[str, float | None]], tolerance: float) -> list[list[T]]:
    """``ranks`` in groups, within which no figure differs by more than ``tolerance`` and the same ones are known.

    Groups come in the order of their first members.
    """
    groups: list[list[T]] = []
    for rank in ranks:
        mine = figures(rank)
        alike = next(
            (group for group in groups if all(_alike(figures(other), mine, tolerance) for other in group)), None
        )
        if alike is None:
            groups.append([rank])
        else:
            alike.append(rank)
    return groups


def ranges(names: Sequence[str]) -> str:
    """Names one after another, three or more that only count up as ``first to last``: ``TP0, TP2 to TP5``."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _alike(one: Mapping[str, float | None], other: Mapping[str, float | None], tolerance: float) -> bool:
    return one.keys() == other.keys() and all(_near(one[name], other[name], tolerance) for name in one)


def _near(one: float | None, other: float | None, tolerance: float) -> bool:
    if one is None or other is None:
        return one is other
    # The figures have two decimals; what their difference lacks to be exact must not decide.
    return abs(one - other) <= tolerance + 1e-9


def _follows(one: str, other: str) -> bool:
    head = one.rstrip("0123456789")
    number, following = one[len(head) :], other[len(head) :]
    return other.startswith(head) and number.isdecimal() and following.isdecimal() and int(following) == int(number) + 1
