"""A GPU's memory as one bar: what took it, in the order in which it was taken, then what is left.

The thick line is the memory fraction: the fraction of what was available before the load. A request that failed is
drawn over what was free and on beyond the end of the memory, which has a line of its own then.
"""

from __future__ import annotations

from markupsafe import Markup

from mtpgate.report.memory import SHOWN_GIB, Figures
from mtpgate.report.memory_names import label_of, segment_class
from mtpgate.report.svg import rect, svg, tick
from mtpgate.report.text import number


def memory_bar(figures: Figures, scale: float, name: str) -> Markup:
    """The bar of ranks that are alike, from 0 to ``scale`` GiB; ``name`` is what they are called in its title."""
    words, parts, place = [], [], 0.0
    for segment, size in figures.parts:
        if size >= SHOWN_GIB:
            parts.append(rect(place / scale, size / scale, segment_class(segment)))
            words.append(f"{label_of(segment)} {size:.2f}")
            place += size
    rank = figures.rank
    end = max(place, rank.before_load or 0.0)
    if rank.wanted is not None:
        parts.append(rect((end - (rank.left or 0.0)) / scale, rank.wanted / scale, "wanted"))
        words.append(f"wanted {rank.wanted:.2f}")
    if figures.over:
        parts.append(tick(end / scale, "edge"))
    if figures.fraction is not None and rank.before_load is not None:
        line = figures.fraction * rank.before_load
        parts.append(tick(line / scale, "base"))
        words.append(f"memory fraction {number(figures.fraction)} at {line:.2f}")
    return svg(f"{name}, {end:.2f} GiB: {', '.join(words)}", parts)
