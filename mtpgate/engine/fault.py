"""The fault switch of the embedded engine: break the real server on purpose, to see that the suite goes red.

``MTPGATE_FAULT=verify:accept_wrong`` in a server's environment, or ``pytest --fault verify:accept_wrong``. The tables
of points and actions are in the plugin (:mod:`mtpgate.engine.overlay.mtpgate_engine.fault`), because the server reads
them too.
"""

from __future__ import annotations

from mtpgate.engine.overlay.mtpgate_engine.fault import (
    ACTIONS,
    POINTS,
    VARIABLE,
    Fault,
    FaultSpellingError,
    valid_faults,
)
from mtpgate.errors import UsageError

__all__ = ["ACTIONS", "POINTS", "VARIABLE", "Fault", "FaultSpellingError", "parse_fault", "valid_faults"]


def parse_fault(text: str) -> Fault:
    """The fault that ``text`` spells, e.g. ``forward:slow=0.30``. Raises UsageError, which names the valid faults."""
    try:
        return Fault.parse(text)
    except FaultSpellingError as error:
        raise UsageError(f"{VARIABLE} or --fault: {error}") from error
