"""How long a diagnosis takes, and how much memory: process time on one core, the log's file in the page cache.

Prints one line a log and exits with 1 if one is beyond its limit. Example: python tools/bench_diagnose.py
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "suites" / "harness" / "server" / "cases"
GIB = 2**30
MOST_MIB = 200.0

sys.path.insert(0, str(ROOT))


def grow(case: str, target: Path, size: int) -> None:
    """``case`` with its lines about batches repeated before its end, until the log has ``size`` bytes."""
    lines = (CASES / f"{case}.log").read_bytes().split(b"\n")
    batches = [line for line in lines if b"Decode batch" in line or b"Prefill batch" in line]
    at = max(place for place, line in enumerate(lines) if b"Decode batch" in line)
    block = (b"\n".join(batches) + b"\n") * 100
    with target.open("wb") as out:
        out.write(b"\n".join(lines[:at]) + b"\n")
        while out.tell() < size:
            out.write(block)
        out.write(b"\n".join(lines[at:]))


def measure(log: str, context: str) -> None:
    """In a process of its own: diagnose, and print what it took as JSON."""
    from mtpgate.server.diagnose import diagnose_file  # noqa: PLC0415 - imports are not part of the time

    known = json.loads(Path(context).read_text())["context"]
    began = time.process_time()
    found = diagnose_file(Path(log), known)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "mib": peak, "kind": found.kind, "rank": found.rank}))


def main() -> int:
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, case, size, limit in (("1 GiB", "case_045", GIB, 10.0), ("200 KB", "case_045", 200_000, 0.3)):
            log = Path(folder) / "server.log"
            grow(case, log, size)
            command = [sys.executable, __file__, str(log), str(CASES / f"{case}.json")]
            told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            expected = json.loads((CASES / f"{case}.json").read_text())
            right = (told["kind"], told["rank"]) == (expected["kind"], expected["rank"])
            good = right and told["seconds"] <= limit and told["mib"] <= MOST_MIB
            bad += not good
            verdict = "ok" if good else "BEYOND ITS LIMIT" if right else "WRONG"
            print(
                f"{name:7} {told['seconds']:6.2f} s of {limit:g}, {told['mib']:4.0f} MiB of {MOST_MIB:.0f}, "
                f"{told['kind']} on {told['rank']}: {verdict}"
            )
    return 1 if bad else 0


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], sys.argv[2])
    else:
        sys.exit(main())
