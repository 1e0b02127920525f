"""How the stand-in is told to behave: one JSON object, from ``--standin`` or the environment's ``MTPGATE_STANDIN``."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path

from memory import Memory

PHASES = (
    "preflight",
    "dist_init",
    "weight_load",
    "draft_load",
    "kv_pool",
    "capture_prefill",
    "capture_target_decode",
    "capture_target_verify",
    "capture_draft_decode",
    "capture_draft_extend",
    "warmup",
    "serving",
)
HANGS = ("idle", "busy", "compile", "read", "bar")


@dataclass(frozen=True)
class Death:
    """Die inside ``phase``: ``oom`` | ``not_enough_memory`` | ``exception`` | ``exit`` | ``sigkill`` | ``sigquit``."""

    phase: str
    how: str = "exception"
    code: int = 1
    """Exit code for ``exit``."""
    after_requests: int = 1
    """For the phase ``serving``: the answer in which it dies."""
    rank: str | None = None
    """The rank whose prefix the traceback carries, if there are several."""


@dataclass(frozen=True)
class Behaviour:
    """What the stand-in does; every default is a healthy, fast server."""

    version: str = "0.5.23"
    """Log format: 0.4.3, 0.4.6, 0.5.9, 0.5.15 or 0.5.23 style, by the nearest older generation."""
    device: str = "cpu"
    """``cpu`` prints no captures, as the CPU engine; ``gpu`` prints those of the version."""
    memory: Memory | None = None
    """A pretended GPU that can run out of memory (``{}``: one like that of the first matrix). The lines have its
    numbers; needs ``device`` gpu and a version from 0.5.15 on."""
    phase_seconds: float = 0.01
    die: Death | None = None
    hang: str | None = None
    """The phase to hang in."""
    hang_how: str = "idle"
    """``idle`` | ``busy`` (uses a core, as a rank that waits for another) | ``compile`` (a child ``cicc`` uses one) |
    ``read`` (20 MB a second, with hardly any CPU time) | ``bar`` (a progress bar that moves and ends no line)."""
    hang_seconds: float | None = None
    """How long until it goes on; None: never."""
    ignore_sigterm: bool = False
    binary_garbage: bool = False
    """Write bytes that are no UTF-8, long lines and carriage returns between the log lines."""
    children: int = 1
    """Child processes that live as long as the server."""
    orphans: int = 0
    """Daemonized grandchildren, in a session of their own, which outlive everything that does not look for them."""
    answers: str = "right"
    """``right`` | ``garbage`` (no JSON) | ``error`` (HTTP 500) | ``wrong`` (one token off in every answer) |
    ``wrong_speculative``, ``wrong_plain`` (the same, with or without speculation only) | ``ties_speculative`` (some
    tokens are tied, and with speculation the second of them is taken) | ``cut`` (the stream ends in the middle)."""
    answer: dict[str, object] = field(default_factory=dict)
    """Overrides of the parts of every answer of ``/generate`` that is not streamed; null leaves the part out."""
    dies_of: tuple[str, ...] = ()
    """Inputs that end it, as they do the real 0.5.23, instead of being refused: ``empty``, ``beyond``, ``negative``."""
    probes: str = "right"
    """``right`` | ``other_second`` (a prompt asked again is answered otherwise) | ``ignores_stop`` |
    ``samples_hot`` (at twice the temperature) |
    ``never_idle`` (``/v1/loads`` tells of a request for good) | ``ignores_abort`` | ``refuses_nothing`` |
    ``deaf`` (after an abort ``/health`` says 200, and ``/generate`` makes no tokens)."""
    tokens_per_second: float | None = None
    """Of one request; None: as fast as it can."""
    accept_length: float = 2.0
    """Mean tokens of a verify step with speculation (bonus included), at most num_steps + 1."""
    retractions: int = 0
    """``num_retractions`` of every answer."""
    flush_refusals: int = 0
    """How often ``/flush_cache`` says 400 first."""
    unhealthy: bool = False
    """``/health`` says 503 for good."""
    mute: bool = False
    """``/health`` takes the request and never answers."""
    server_info: dict[str, object] = field(default_factory=dict)
    """Overrides of what ``/server_info`` reports."""
    old_endpoints_only: bool = False
    """No ``/server_info`` and ``/model_info``, as before they were introduced."""

    @classmethod
    def parse(cls, text: str | None) -> Behaviour:
        """From JSON; ValueError for an unknown key or phase.

        ``first_launch`` has what is different in one launch: a ``file``, which the first that finds it missing makes,
        and the keys that are otherwise in that launch.
        """
        values = json.loads(text) if text else {}
        values |= _only_once(values.pop("first_launch", None))
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"unknown keys for the stand-in: {sorted(unknown)}")
        if isinstance(values.get("die"), dict):
            values["die"] = Death(**values["die"])
        if isinstance(values.get("memory"), dict):
            values["memory"] = Memory(**values["memory"])
        for phase in (values.get("hang"), values["die"].phase if values.get("die") else None):
            if phase is not None and phase not in PHASES:
                raise ValueError(f"unknown phase for the stand-in: {phase}")
        if values.get("hang_how", "idle") not in HANGS:
            raise ValueError(f"unknown way to hang for the stand-in: {values['hang_how']}")
        return cls(**values)


def _only_once(first: dict[str, object] | None) -> dict[str, object]:
    if first is None:
        return {}
    try:
        Path(str(first.pop("file"))).touch(exist_ok=False)
    except FileExistsError:
        return {}
    return first
