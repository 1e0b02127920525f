"""What was seen of a launch that had to be ended, and what that adds to the diagnosis of its log."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mtpgate.server.command import LaunchSpec
from mtpgate.server.diagnosis import Diagnosis
from mtpgate.server.process import ServerProcess
from mtpgate.server.stacks import Stacks, dump_stacks, find_py_spy
from mtpgate.server.stall import LifeSigns, seconds_text


@dataclass(frozen=True)
class Ended:
    """Seen at the moment at which a launch was found stalled or overdue, before it was ended."""

    signs: LifeSigns
    stacks: Stacks
    overdue_seconds: float | None = None
    """How long it was in its phase, if that was longer than the deadline; None: it is stalled."""
    last_line: str = ""
    """Of its log. Being ended, it may say more."""

    @classmethod
    def look(
        cls,
        spec: LaunchSpec,
        process: ServerProcess,
        signs: LifeSigns,
        *,
        overdue_seconds: float | None = None,
        last_line: str = "",
    ) -> Ended:
        """Takes the stacks of all Python processes that still run, to ``stacks.txt`` beside the log."""
        target = spec.log_path.with_name("stacks.txt")
        stacks = dump_stacks(process.pids(), target, py_spy=find_py_spy(spec.command))
        return cls(signs, stacks, overdue_seconds, last_line)

    def words(self) -> str:
        """Why it was ended, and what its processes did."""
        if self.overdue_seconds is None:
            return self.signs.words()
        return f"not over after {seconds_text(self.overdue_seconds)} (deadline); {self.signs.words()}"

    @property
    def compiling(self) -> bool | None:
        """What the processes did tells slow from stuck, where the log cannot; None: they do not tell either."""
        if self.signs.compilers:
            return True
        return None if self.signs.busy else False  # The log's last word may be that it compiles.

    def explain(self, diagnosis: Diagnosis) -> Diagnosis:
        """``diagnosis`` of the log, with what was seen beside it.

        A cause that the log gives stays.
        """
        if diagnosis.kind not in ("hang", "slow_compile"):
            return diagnosis
        last = f"; last line: {self.last_line}" if self.last_line else ""
        summary = f"{diagnosis.kind} in {diagnosis.phase}: {self.words()}; {self.stacks.summary}{last}"
        return replace(diagnosis, summary=summary)
