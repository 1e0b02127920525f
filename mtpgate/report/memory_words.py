"""What is said beside the picture of a launch's memory: the fraction, the KV tokens, the forecast, the failing request.

GiB have two decimals, a memory fraction at least two and at most three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from mtpgate.report.memory import Figures, Memory
from mtpgate.report.memory_names import label_of
from mtpgate.report.records import FitAttempt, LaunchRecord
from mtpgate.report.run import CellRun
from mtpgate.report.text import MINUS, number
from mtpgate.server.budget import STATIC_NAMES
from mtpgate.server.diagnosis import MEMORY_KINDS

_DASH = "\u2013"


def memory_lines(cell: CellRun, memory: Memory | None) -> list[str]:
    """Sentences on a launch's memory; empty where nothing is known of it."""
    launch = cell.launch
    if launch is None:
        return []
    lines = []
    if memory is not None and memory.bars:
        tightest = min(memory.bars, key=lambda item: math.inf if item.rank.left is None else item.rank.left)
        lines.append(" ".join(part for part in (_fraction(memory, tightest), _kv(memory), _host(cell)) if part))
    if memory is not None:
        lines += [_wanted(item) for item in memory.figures if item.rank.wanted is not None]
    lines.append(forecast_line(launch))
    return [line for line in lines if line]


def forecast_line(launch: LaunchRecord) -> str:
    """What was expected before the launch, and whether it came so; empty without a forecast."""
    forecast = launch.forecast or {}
    fits, text, left = forecast.get("fits"), str(forecast.get("text") or "").strip(), forecast.get("left_gib")
    if not text and not isinstance(fits, bool):
        return ""
    if not text:
        text = "it fits" if fits else "it does not fit"
        text += f", with {number(left)} GiB left." if fits and isinstance(left, int | float) else "."
    cell = str(forecast.get("from_cell") or "")
    # The text may name the cell itself, then in its first words.
    head = "Forecast" if cell in text else f"Forecast from {cell}"
    said = f"{head} {text}" if text.startswith("by ") else f"{head}: {text}"
    said += "" if said.endswith((".", "!", "?")) else "."
    came = _fitted(launch)
    so = "" if came is None or not isinstance(fits, bool) else " It came so." if came is fits else _otherwise(launch)
    return said + so


def unmatched_lines(launch: LaunchRecord) -> list[str]:
    """Lines of the start-up that no known format matches, as the launch or else its diagnosis has them."""
    if launch.unmatched:
        return list(launch.unmatched)
    found = (launch.diagnosis or {}).get("unmatched")
    lines = found if isinstance(found, list | tuple) else []
    return [f"{line.get('line', '')}: {line.get('text', '')}" for line in lines if isinstance(line, Mapping)]


def change_of(attempt: FitAttempt) -> str:
    """``mem_fraction_static = 0.60, cuda_graph_max_bs = 16``."""
    changes = (
        f"{name} = {number(value) if isinstance(value, float) else value}" for name, value in attempt.change.items()
    )
    return ", ".join(changes) or "nothing changed"


def gib(size: float | None) -> str:
    """Two decimals, a dash for what is not known."""
    return _DASH if size is None else f"{size:.2f}".replace("-", MINUS)


def tokens(count: int | None) -> str:
    """With thousands separated, a dash for what is not known."""
    return _DASH if count is None else f"{count:,}"


def _fraction(memory: Memory, figures: Figures) -> str:
    fraction, base = memory.budget.fraction, figures.rank.before_load
    if fraction is None or base is None:
        return ""
    counted = [
        (label_of(name), size)
        for name, size in figures.parts
        if name in STATIC_NAMES and (memory.budget.draft_counted or name != "draft_weights")
    ]
    names = [name for name, _ in counted]
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
    taken = sum(size for _, size in counted)
    verb = "take" if len(names) > 1 else "takes" if names != ["weights"] else "take"
    head = f"The memory fraction {number(fraction)} of {base:.2f} GiB is {fraction * base:.2f} GiB (thick line)"
    tail = f"; {listed} {verb} {taken:.2f} GiB." if names else "."
    draft = "" if memory.budget.draft_counted else " This SGLang does not count the draft's weights into the fraction."
    return head + tail + draft


def _kv(memory: Memory) -> str:
    return f"{tokens(memory.kv_tokens)} KV tokens." if memory.kv_tokens is not None else ""


def _host(cell: CellRun) -> str:
    return "" if cell.info.gpus else "This is the host's memory, which other processes use too."


def _wanted(figures: Figures) -> str:
    rank = figures.rank
    where = f"{rank.rank} asked" if rank.rank else "The server asked"
    said = f"{where} for {rank.wanted:.2f} GiB"
    if rank.left is None:
        return f"{said}."
    lacking = f": {figures.over:.2f} GiB too few" if figures.over else ", in pieces that are too small"
    return f"{said} with {rank.left:.2f} GiB free{lacking}."


def _fitted(launch: LaunchRecord) -> bool | None:
    """Whether the launch had the memory that it needed; None where it failed for another reason."""
    if launch.state == "ready":
        return True
    return False if (launch.diagnosis or {}).get("kind") in MEMORY_KINDS else None


def _otherwise(launch: LaunchRecord) -> str:
    return " It came otherwise: " + ("the server started." if launch.state == "ready" else "memory ran out.")
