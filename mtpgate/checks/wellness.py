"""Is a server as it was after something was asked of it? It answers, and nothing is left running, waiting or held.

``/health`` alone proves little: a server can say 200 and make no tokens. So a question is asked. That the load has gone
is read from ``/v1/loads``, whose report is published now and then: only one made after the question counts. Tokens of
the prefix cache are not "in use" there, they can be evicted. A server without ``/v1/loads`` shows that it is idle by
emptying its cache, which it refuses while requests are pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mtpgate.checks.facts import Facts
from mtpgate.checks.probing import PROMPT, Asked, ProbeFailed, body, whole_answer
from mtpgate.server.client import ServerError

SHORT_TOKENS = 2
POLL_SECONDS = 0.1
COUNTED: Mapping[str, str] = {
    "num_running_reqs": "running requests",
    "num_waiting_reqs": "waiting requests",
    "num_used_tokens": "KV tokens in use",
}


def require_well(server: Asked, facts: Facts) -> None:
    """It answers a short question and gets idle.

    Raises:
        ProbeFailed: it answers otherwise than asked, or something is left.
        ServerError: it does not answer.
    """
    whole_answer(server, "a short question afterwards", body(PROMPT, SHORT_TOKENS))
    require_idle(server, facts)


def require_idle(server: Asked, facts: Facts) -> None:
    """Nothing runs, waits or holds KV tokens within ``facts.idle_seconds`` from now."""
    asked = facts.clock()
    while True:
        loads = server.loads()
        if loads is None:
            return _require_flush(server)
        left = _left(loads)
        age = asked - min((float(load.get("timestamp") or asked) for load in loads), default=asked)
        if not left and age <= 0:
            return None
        if facts.clock() - asked > facts.idle_seconds:
            found = ", ".join(left) or f"its last report of that is {age:.0f} s older than the question"
            raise ProbeFailed(
                f"not idle {facts.idle_seconds:g} s after the last answer (/v1/loads): expected nothing running, "
                f"waiting or held, found {found}"
            )
        facts.sleep(POLL_SECONDS)


def _left(loads: Sequence[Mapping[str, Any]]) -> list[str]:
    sums = {words: sum(int(load.get(name) or 0) for load in loads) for name, words in COUNTED.items()}
    return [f"{count} {words}" for words, count in sums.items() if count]


def _require_flush(server: Asked) -> None:
    try:
        server.flush_cache()
    except ServerError as error:
        if error.status != 400:
            raise
        raise ProbeFailed(f"not idle: the cache cannot be emptied, as if requests were pending ({error})") from error
