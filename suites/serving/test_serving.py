"""Is the server still there after all that was asked, and does it go when it is told to?"""

import pytest

from fixtures.outcomes import remark
from mtpgate.checks.probes import DEADLY, run_probe
from mtpgate.checks.probing import look
from mtpgate.server.client import ServerClient
from mtpgate.server.launch import RunningServer

pytestmark = [pytest.mark.mtp, pytest.mark.serving]


def test_still_answers(client: ServerClient) -> None:
    """Still answers after all that was asked of it."""
    assert client.health_generate(), "/health_generate does not answer 200: the scheduler makes no tokens any more"
    answer = client.generate(text="Still there?", sampling_params={"temperature": 0, "max_new_tokens": 4})
    assert answer["meta_info"].get("completion_tokens") == 4, f"asked for 4 tokens, got {answer['meta_info']}"


# Whether a bad request is refused does not depend on how the cell speculates, and a death costs a launch.
@pytest.mark.reference_only
@pytest.mark.probe
@pytest.mark.parametrize("probe", DEADLY)
def test_refuses_or_answers(
    probe: str, client: ServerClient, server: RunningServer, request: pytest.FixtureRequest
) -> None:
    """Refuses or answers an input that has killed servers, and is well afterwards."""
    result = run_probe(probe, client, look(client, server.server_info))
    assert result.ok, result.message
    remark(request.node, f"{result.message} ({result.seconds:.1f} s)")


def test_stops_cleanly(server: RunningServer, request: pytest.FixtureRequest) -> None:
    """Stops on SIGTERM, and leaves no process behind."""
    report = server.stop()
    assert not report.survivors, (
        f"{report.seconds:.0f} s after SIGTERM these still ran and had to be killed: {', '.join(report.survivors)}"
    )
    remark(request.node, f"stopped in {report.seconds:.1f} s, exit code {report.exit_code}")
