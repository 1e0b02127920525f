"""What a search for what fits came to, in words."""

from __future__ import annotations

from mtpgate.server.fit import shown
from mtpgate.server.fit_search import Found


def told(found: Found) -> str:
    """For a person: every launch in a line, then the answer, then the graph batch limit where one was sought."""
    tried = [
        f"{number:3}  {shown(item.change):48}  {item.seconds:7.1f} s  {item.text}"
        for number, item in enumerate(found.attempts, start=1)
    ]
    return "\n".join([*tried, *answer(found)])


def answer(found: Found) -> list[str]:
    """The last lines: what starts, where it ends, and why no more is known."""
    lines = [_fraction(found)]
    if found.graph_max_bs is not None:
        refused = found.graph_refused
        end = f" ({refused.value:g} does not: {refused.text})" if refused else ""
        lines.append(f"largest graph batch limit that starts there: {found.graph_max_bs}{end}")
    if found.ended not in ("found", "nothing"):
        lines.append(f"ended before that was known to {found.resolution:g}: {found.why}")
    return lines


def _fraction(found: Found) -> str:
    refused, too_low = found.refused, found.too_low
    if found.fraction is None:
        ends = [
            *([f"{too_low.value:g} is too low ({too_low.text})"] if too_low else []),
            *([f"{refused.value:g} is too high ({refused.text})"] if refused else []),
        ]
        known = ", ".join(ends) or "nothing was learnt"
        return f"no fraction is known to start: {known}"
    if refused is not None and refused.value <= found.fraction:
        # Every fraction failed with the cell's own limit.
        return f"{found.fraction:g} starts with cuda_graph_max_bs={found.graph_max_bs}, and not with the cell's own"
    if refused is None:
        return f"largest fraction that starts: {found.fraction:g} (nothing above it was refused)"
    if found.exact:
        return f"largest fraction that starts: {found.fraction:g} ({refused.value:g} does not: {refused.text})"
    return (
        f"the largest fraction that starts is between {found.fraction:g} (starts) and "
        f"{refused.value:g} (does not: {refused.text})"
    )
