"""What public reports show to break after a green start, one probe a test; after each the server must be well."""

import pytest

from fixtures.outcomes import not_judged, remark
from mtpgate.checks.facts import look
from mtpgate.checks.probes import PROBES, run_probe
from mtpgate.server.client import ServerClient
from mtpgate.server.launch import RunningServer

pytestmark = [pytest.mark.mtp, pytest.mark.serving, pytest.mark.probe]


@pytest.mark.parametrize("probe", PROBES)
def test_survives(probe: str, client: ServerClient, server: RunningServer, request: pytest.FixtureRequest) -> None:
    """Answers a probe as it must, and is well afterwards."""
    result = run_probe(probe, client, look(client, server.server_info))
    assert result.outcome != "failed", result.message
    if result.outcome == "not_asked":
        not_judged(request.node, "skipped", result.message)
    remark(request.node, f"{result.message} ({result.seconds:.1f} s)")
