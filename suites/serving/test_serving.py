"""Is the server still there after all that was asked, and does it go when it is told to?"""

import pytest

from fixtures.launches import Launched
from fixtures.outcomes import not_judged, remark
from mtpgate.checks.facts import look
from mtpgate.checks.probes import DEADLY, IMPLIED, run_probe
from mtpgate.checks.probing import body, whole_answer
from mtpgate.server.client import ServerClient
from mtpgate.server.launch import RunningServer

pytestmark = [pytest.mark.mtp, pytest.mark.serving]

TOKENS = 4


def test_still_answers(client: ServerClient) -> None:
    """Still answers after all that was asked of it."""
    assert client.health_generate(), "/health_generate does not answer 200: the scheduler makes no tokens any more"
    whole_answer(client, "a short question", body("Still there?", TOKENS))


# Whether a bad request is refused does not depend on how the cell speculates, and a death costs a launch.
# Leave them out with -m "mtp and not reference_only".
@pytest.mark.reference_only
@pytest.mark.probe
@pytest.mark.parametrize("probe", DEADLY)
def test_refuses_or_answers(probe: str, launched: Launched, request: pytest.FixtureRequest) -> None:
    """Refuses or answers an input that has killed servers, and is well afterwards."""
    if launched.killed_by is not None and launched.killed_by == IMPLIED.get(probe):
        not_judged(request.node, "skipped", f"not asked: {launched.killed_by}, which is alike, has killed the server")
    # Only now, for a server that is dead is launched again for it.
    client: ServerClient = request.getfixturevalue("client")
    server: RunningServer = request.getfixturevalue("server")
    result = run_probe(probe, client, look(client, server.server_info))
    assert result.outcome != "failed", result.message
    if result.outcome == "not_asked":
        not_judged(request.node, "skipped", result.message)
    remark(request.node, f"{result.message} ({result.seconds:.1f} s)")


def test_stops_cleanly(launched: Launched, request: pytest.FixtureRequest) -> None:
    """Stops on SIGTERM, and leaves no process behind."""
    dead = launched.server if launched.killed_by is not None else None
    # A launch for this question alone would cost as much as all others of the cell; other cells answer it.
    server: RunningServer = dead or request.getfixturevalue("server")
    report = server.stop()
    told = "it was dead" if dead else "SIGTERM"
    assert not report.survivors, (
        f"{report.seconds:.0f} s after {told} these still ran and had to be killed: {', '.join(report.survivors)}"
    )
    if dead:
        why = f"not asked: {launched.killed_by} has killed the server, and nothing else was left to be asked of it"
        not_judged(request.node, "skipped", f"{why}; it left no process behind")
    remark(request.node, f"stopped in {report.seconds:.1f} s, exit code {report.exit_code}")
