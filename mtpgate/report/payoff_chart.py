"""Two plots: speed-up by concurrency, and tokens/s against accept length. One colour a cell, named in the table beside.

Places are shares of the plot's width and height, so that it fits a phone; every mark has its figures as a title.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from markupsafe import Markup

from mtpgate.judge.payoff import Payoff, Point
from mtpgate.report.svg import share
from mtpgate.report.text import clean

COLOURS = 8
"""Classes ``k0`` to ``k7`` of the page; with more cells they come again."""

LEFT, RIGHT, TOP, BOTTOM = 0.08, 0.97, 0.08, 0.86
"""The area of the marks; what is around it is for the axes' numbers."""


def colour(payoff: Payoff, cell: str) -> str:
    """The class of a cell's marks."""
    names = [item.cell for item in payoff.cells]
    return f"k{names.index(cell) % COLOURS}" if cell in names else "k-other"


def speedup_plot(payoff: Payoff) -> Markup:
    """Speed-up (from 0) by concurrency (logarithmic), the spread of the repeats as a bar, 1 as a line."""
    ups = [up for cell in payoff.cells for up in cell.speedups]
    top = max(1.0, *(up.high for up in ups)) * 1.05
    loads = sorted({up.point.concurrency for up in ups})

    def place(concurrency: int) -> float:
        low, high = math.log(loads[0]), math.log(loads[-1])
        return 0.5 if low == high else 0.05 + 0.9 * (math.log(concurrency) - low) / (high - low)

    parts = [_line((0, 1 / top), (1, 1 / top), "base"), _number(0, 1 / top, "1x", "end")]
    parts += [_number(place(load), 0, f"C{load}", "middle") for load in loads]
    for cell in payoff.cells:
        css = colour(payoff, cell.cell)
        spots = [(place(up.point.concurrency), up.ratio / top) for up in cell.speedups]
        parts += [_line(a, b, f"track {css}") for a, b in itertools.pairwise(spots)]
        for up, (x, y) in zip(cell.speedups, spots, strict=True):
            parts.append(_line((x, up.low / top), (x, up.high / top), f"track {css}"))
            parts.append(_spot(x, y, css, f"{cell.cell} {up.point.workload}: {up}"))
    return _plot("Speed-up over the reference by concurrency", parts)


def accept_plot(payoff: Payoff, workload: str) -> Markup:
    """Tokens/s (from 0) against accept length (from 1) at one workload; the reference's tokens/s as a line."""
    points = [point for point in payoff.points if point.workload == workload]
    accepted = [point for point in points if point.accept_length is not None]
    longest = max((point.accept_length or 1 for point in accepted), default=1.0)
    fastest = max(point.tokens_per_second for point in points) * 1.08
    span = max(longest * 1.04 - 1, 1e-9)
    parts = [_number(0, 0, "1", "middle"), _number((longest - 1) / span, 0, f"{longest:.2f}", "middle")]
    for point in points:
        height = point.tokens_per_second / fastest
        if point.cell == payoff.reference:
            parts += [
                _line((0, height), (1, height), "base"),
                _number(0, height, f"{point.tokens_per_second:.0f}", "end"),
            ]
    parts += [_accepted(payoff, point, span, fastest) for point in accepted]
    return _plot(f"Tokens/s against accept length at {workload}", parts)


def _accepted(payoff: Payoff, point: Point, span: float, fastest: float) -> Markup:
    length = point.accept_length or 1.0
    title = f"{point.cell}: accept length {length:.2f}, {point.tokens_per_second:.1f} tok/s"
    return _spot((length - 1) / span, point.tokens_per_second / fastest, colour(payoff, point.cell), title)


def _plot(label: str, parts: Sequence[Markup]) -> Markup:
    return Markup('<svg class="plot" height="220" role="img"><title>{}</title>{}</svg>').format(
        clean(label), Markup("").join(parts)
    )


def _x(place: float) -> str:
    return share(LEFT + min(max(place, 0.0), 1.0) * (RIGHT - LEFT))


def _y(place: float) -> str:
    return share(BOTTOM - min(max(place, 0.0), 1.0) * (BOTTOM - TOP))


def _line(begin: tuple[float, float], end: tuple[float, float], css: str) -> Markup:
    return Markup('<line x1="{}%" y1="{}%" x2="{}%" y2="{}%" class="{}"/>').format(
        _x(begin[0]), _y(begin[1]), _x(end[0]), _y(end[1]), css
    )


def _spot(x: float, y: float, css: str, title: str) -> Markup:
    return Markup('<circle cx="{}%" cy="{}%" r="5" class="{}"><title>{}</title></circle>').format(
        _x(x), _y(y), css, clean(title)
    )


def _number(x: float, y: float, text: str, anchor: str) -> Markup:
    """Below the area for the x axis (``middle``), left of it for the y axis (``end``)."""
    below = anchor == "middle"
    return Markup('<text x="{}%" y="{}%" text-anchor="{}" dy="{}" dx="{}">{}</text>').format(
        _x(x), _y(y), anchor, "18" if below else "4", "0" if below else "-6", clean(text)
    )
