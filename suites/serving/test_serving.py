"""Is the server still there after all that was asked, and does it go when it is told to?"""

import pytest

from fixtures.outcomes import remark
from mtpgate.server.client import ServerClient
from mtpgate.server.launch import RunningServer

pytestmark = [pytest.mark.mtp, pytest.mark.serving]


def test_still_answers(client: ServerClient) -> None:
    """Still answers after all that was asked of it."""
    assert client.health_generate(), "/health_generate does not answer 200: the scheduler makes no tokens any more"
    answer = client.generate(text="Still there?", sampling_params={"temperature": 0, "max_new_tokens": 4})
    assert answer["meta_info"].get("completion_tokens") == 4, f"asked for 4 tokens, got {answer['meta_info']}"


def test_stops_cleanly(server: RunningServer, request: pytest.FixtureRequest) -> None:
    """Stops on SIGTERM, and leaves no process behind."""
    report = server.stop()
    assert not report.survivors, (
        f"{report.seconds:.0f} s after SIGTERM these still ran and had to be killed: {', '.join(report.survivors)}"
    )
    remark(request.node, f"stopped in {report.seconds:.1f} s, exit code {report.exit_code}")
