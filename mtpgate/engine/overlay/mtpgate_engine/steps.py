"""Counting the steps in which a fault strikes."""

from __future__ import annotations


class EveryNth:
    """``due()`` is true at each N-th call, beginning with the N-th."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._calls = 0

    def due(self) -> bool:
        """Count one call, and say whether it is an N-th."""
        self._calls += 1
        return self._calls % self._n == 0
