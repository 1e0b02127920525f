"""The pieces of the page's inline charts. Lengths and places are shares of the chart's width, from 0 to 1.

What lies outside is drawn at the edge: no figure, however wrong, leaves its chart.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from mtpgate.report.text import clean

_HEIGHT = 20


def svg(label: str, parts: Sequence[Markup]) -> Markup:
    """A chart of the full width of its place; ``label`` is its title, which says its figures to a screen reader."""
    return Markup('<svg class="c" height="{}" role="img"><title>{}</title>{}</svg>').format(
        _HEIGHT, clean(label), Markup("").join(parts)
    )


def rect(begin: float, length: float, css: str) -> Markup:
    return Markup('<rect x="{}%" width="{}%" y="3" height="14" class="{}"/>').format(share(begin), share(length), css)


def tick(place: float, css: str) -> Markup:
    return Markup('<line x1="{0}%" x2="{0}%" y1="0" y2="20" class="{1}"/>').format(share(place), css)


def dot(place: float) -> Markup:
    return Markup('<circle cx="{}%" cy="10" r="2"/>').format(share(place))


def share(fraction: float) -> str:
    """``fraction`` of the width in percent, without the sign."""
    return f"{min(max(fraction, 0.0), 1.0) * 100:.2f}".rstrip("0").rstrip(".")
