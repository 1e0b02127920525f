"""A fault that the engine commits on purpose, spelled ``point:action`` or ``point:action=value`` in one environment
variable.

This module is read on both sides, by pytest's and by SGLang's interpreter, and so imports the standard library only.

To add a fault: name it in ``ACTIONS`` or ``POINTS`` here, and carry it out in ``commit.py`` or one of the
``fault_*.py`` beside this file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

VARIABLE = "MTPGATE_FAULT"
"""The environment variable that a server process reads its fault from."""


class FaultSpellingError(ValueError):
    """The text is not a fault; the message names what would be."""


@dataclass(frozen=True)
class _Action:
    """How an action's value reads: its type, its default (None: must be given), its range, and what it does."""

    meaning: str
    value: Callable[[str], float] | None = None
    default: float | None = None
    least: float = 0.0
    most: float = sys.float_info.max


def _each_nth(meaning: str) -> _Action:
    """An action whose value is a number of steps, by default every one."""
    return _Action(meaning, value=int, default=1.0, least=1.0)


ACTIONS: Mapping[str, _Action] = MappingProxyType(
    {
        "raise_oom": _Action("raise torch.OutOfMemoryError with the text of a CUDA out of memory"),
        "raise_oom_above": _Action(
            "raise the same, with numbers that fit, if the server's memory fraction is above this",
            value=float,
            most=1.0,
        ),
        "hang": _Action("never come back"),
        "exit": _Action("end the process at once with this exit code", value=int),
        "slow": _Action("take this much longer, as a share of the time that it took", value=float),
        "accept_wrong": _each_nth(
            "accept one draft token that the target did not choose, per request, in each N-th step"
        ),
        "drop_bonus": _each_nth("leave the bonus token after accepted drafts out of the answer, in each N-th step"),
        "count_high": _Action("count one more correct draft in each step than there was"),
        "mix_slots": _each_nth(
            "write K and V of two requests' bonus tokens to each other's slot, in each N-th step of several requests"
        ),
        "stale_kv": _each_nth(
            "keep the K and V of a rejected draft token at an accepted position, after each N-th step that rejected one"
        ),
        "ignore_stop": _Action("overlook a stop string or the end of text in a step of several tokens"),
        "nan": _each_nth("make the logits of one request NaN once, in the N-th verify step of several requests"),
        "random": _Action("have random weights"),
        "hot": _Action("sample at this many times the temperature that was asked for", value=float, least=0.01),
    }
)

_MOMENT = ("raise_oom", "hang", "exit")
# The memory fraction decides nothing before the pool is sized.
_SIZED = ("raise_oom", "raise_oom_above", "hang", "exit")

POINTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "weights": _MOMENT,  # in the target model's load, after "Load weight begin"
        "draft_weights": (*_MOMENT, "random"),  # the same of the draft model
        "pool": _SIZED,  # as the target's KV buffers are allocated, before "KV Cache is allocated"
        "capture": _SIZED,  # in CPU graph capture, which a launch without MTP does with --enable-torch-compile
        "first_forward": _SIZED,  # the first forward of the target: the warm-up request, after "Uvicorn running"
        "forward": ("slow", "nan"),  # every forward of target and draft; nan: the target's verify step
        "verify": ("accept_wrong", "drop_bonus", "count_high"),  # what is accepted, and what becomes of it
        "cache": ("mix_slots", "stale_kv"),  # where a verify step writes the K and V of its tokens
        "output": ("ignore_stop",),  # whether an answer is at its end
        "sampling": ("hot",),  # the draw of a token, where it is drawn
    }
)


@dataclass(frozen=True)
class Fault:
    """One action at one point; ``value`` is the action's number, None for an action without one."""

    point: str
    action: str
    value: float | None = None

    def __post_init__(self) -> None:
        """Refuse a combination that is not in the tables, so that no fault exists that would do nothing."""
        if self.point not in POINTS or self.action not in POINTS[self.point]:
            raise FaultSpellingError(f"{self.point}:{self.action} is no fault; {valid_faults()}")
        kind = ACTIONS[self.action]
        if (kind.value is None) != (self.value is None):
            wanted = "takes no value" if kind.value is None else f"needs a number, {self.action}=N"
            raise FaultSpellingError(f"{self.point}:{self.action} {wanted}; {valid_faults()}")
        if self.value is not None and not kind.least <= self.value <= kind.most:
            end = "" if kind.most > 1.0 else f", at most {kind.most:g}"
            raise FaultSpellingError(
                f"{self.action}={self.value:g} is out of range: at least {kind.least:g}{end} is expected"
            )

    @classmethod
    def parse(cls, text: str) -> Fault:
        """The fault that ``text`` spells. Raises FaultSpellingError, which names the valid faults."""
        point, _, rest = text.strip().partition(":")
        action, equals, number = rest.partition("=")
        kind = ACTIONS.get(action)
        if kind is None or kind.value is None:
            if equals:
                raise FaultSpellingError(f"{text!r}: the action takes no value; {valid_faults()}")
            return cls(point, action)
        if not equals:
            return cls(point, action, kind.default)
        try:
            value = kind.value(number)
        except ValueError:
            raise FaultSpellingError(f"{text!r}: {number!r} is not a number; {valid_faults()}") from None
        return cls(point, action, float(value))

    def __str__(self) -> str:
        """The spelling that ``parse`` reads."""
        return f"{self.point}:{self.action}" + ("" if self.value is None else f"={self.value:g}")


def valid_faults() -> str:
    """One line that names every point with its actions, for messages."""
    spelled = {name: name if action.value is None else f"{name}=N" for name, action in ACTIONS.items()}
    return "valid faults: " + ", ".join(
        f"{point}:{'|'.join(spelled[action] for action in actions)}" for point, actions in POINTS.items()
    )
