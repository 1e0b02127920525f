"""Does the cell still start? One launch, up to and past graph capture, as it was asked for."""

import pytest

from fixtures.launches import Launched, StartupFailed
from fixtures.outcomes import remark
from mtpgate.server.captures import expected_captures
from mtpgate.server.info import compare_with_server_info
from mtpgate.server.launch import RunningServer

pytestmark = [pytest.mark.mtp, pytest.mark.startup]


def test_reaches_ready(launched: Launched, request: pytest.FixtureRequest) -> None:
    """Reaches ready, past every graph capture."""
    if launched.failure is not None:
        raise StartupFailed(launched.failure, launched.fit)
    assert launched.server is not None
    timeline, info = launched.server.timeline, launched.server.server_info
    expected = expected_captures(launched.cell, info)
    missing = sorted(expected - {span.phase for span in timeline.phases})
    assert not missing, (
        f"{launched.cell.id} got ready without {', '.join(missing)}: it runs eagerly where it should replay graphs; "
        f"look for 'cuda graph' in {launched.server.log_path.name}, and at the reported graph settings"
    )
    unfinished = [span.phase for span in timeline.phases if span.phase.startswith("capture_") and span.seconds is None]
    assert not unfinished, f"{launched.cell.id} says that it is ready, but {', '.join(unfinished)} never ended"
    captured = ", ".join(sorted(expected)) or "none: this engine captures no graphs"
    remark(request.node, f"ready after {launched.server.startup_seconds:.1f} s; captures: {captured}")


def test_runs_as_asked(launched: Launched, server: RunningServer) -> None:
    """Runs with the arguments that the cell asked for."""
    differences = compare_with_server_info(launched.cell.arguments, server.server_info)
    assert not differences, (
        f"{launched.cell.id} is not the launch that the matrix describes:\n"
        + "\n".join(f"  {difference}" for difference in differences)
        + "\nSGLang rewrote or ignored these; write the matrix as it will run, or the cell measures something else"
    )
