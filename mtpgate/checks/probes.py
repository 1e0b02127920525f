"""Probes: what public reports show to break after a green start, each followed by the question whether all is well.

The last three have killed servers. What follows them needs a server that is launched anew, so they come last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from mtpgate.checks import probe_answers, probe_limits, probe_load, probe_sampling, probe_stops
from mtpgate.checks.facts import Facts
from mtpgate.checks.probing import Asked, NotAsked, ProbeFailed
from mtpgate.checks.wellness import require_well
from mtpgate.server.client import ServerError

Probe = Callable[[Asked, Facts], str]
"""Returns what was seen, for the report; raises :class:`ProbeFailed` or :class:`NotAsked`."""

Outcome = Literal["passed", "failed", "not_asked"]

PROBES: Mapping[str, Probe] = {
    "same-prompt-twice": probe_answers.same_prompt_twice,
    "shared-prefix": probe_answers.shared_prefix,
    "short-answers": probe_answers.short_answers,
    "stop-string": probe_stops.stop_string,
    "end-of-text": probe_stops.end_of_text,
    "several-answers": probe_answers.several_answers,
    "json-schema": probe_answers.json_schema,
    "chat": probe_answers.chat,
    "sampling": probe_sampling.sampling,
    "changing-batch": probe_load.changing_batch,
    "more-than-run": probe_load.more_than_run,
    "abort": probe_load.abort,
    "context-limit": probe_limits.context_limit,
    "refusals": probe_limits.refusals,
}

DEADLY: Mapping[str, Probe] = {
    "empty-prompt": probe_limits.empty_prompt,
    "token-beyond-vocabulary": probe_limits.token_beyond_vocabulary,
    "negative-token": probe_limits.negative_token,
}
"""Inputs that some SGLang dies of instead of refusing them: 0.5.23 of each."""


IMPLIED: Mapping[str, str] = {"negative-token": "token-beyond-vocabulary"}
"""Not asked where the server has just died of the other: the same look-up fails, and a death costs a launch."""


@dataclass(frozen=True)
class ProbeResult:
    """What a probe came to."""

    name: str
    outcome: Outcome
    message: str
    """What was seen; where it failed, what was asked, expected and found; where it was not asked, why."""
    seconds: float


def run_probe(name: str, server: Asked, facts: Facts, *, clock: Callable[[], float] = time.monotonic) -> ProbeResult:
    """Ask one probe, then whether the server still answers and gets idle.

    Raises:
        ServerError: the server did not answer, or with an error; the text begins with the probe's name.
    """
    probe = {**PROBES, **DEADLY}[name]
    began = clock()
    try:
        outcome, seen = _asked(probe, server, facts)
        try:
            require_well(server, facts)
        except ProbeFailed as failed:
            seen = f"{seen}\nafterwards: {failed}" if outcome == "failed" else f"afterwards: {failed}"
            outcome = "failed"
    except ServerError as error:
        raise ServerError(f"{name}: {error}", status=error.status) from error
    return ProbeResult(name, outcome, f"{name}: {seen}", clock() - began)


def _asked(probe: Probe, server: Asked, facts: Facts) -> tuple[Outcome, str]:
    try:
        return "passed", probe(server, facts)
    except ProbeFailed as failed:
        return "failed", str(failed)
    except NotAsked as why:
        return "not_asked", f"not asked: {why}"
