"""Who accepts a baseline."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


def whoami(folder: Path, environ: Mapping[str, str] = os.environ) -> str:
    """git's ``user.name`` as it is in ``folder``, else the login name; empty where neither is known."""
    try:
        asked = subprocess.run(
            ["git", "config", "user.name"], cwd=folder, capture_output=True, text=True, timeout=10, check=False
        )
        name = asked.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        name = ""
    return name or environ.get("USER", "") or environ.get("LOGNAME", "")
