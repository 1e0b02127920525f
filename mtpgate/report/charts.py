"""Bars as inline SVG, one for each row of a table whose cells hold the same figures as text.

Lengths are percentages of the bar's width, so that a chart fits a phone as well as a wide screen without scaling its
text; colours are CSS classes of the page, so that it follows dark mode and print. Each has a title, which says its
figures to a screen reader; the table's text says the rest (the phases of a start-up).
The same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from mtpgate.report.records import LaunchRecord, MeasurementRecord, PhaseSpan
from mtpgate.report.svg import dot, rect, svg, tick


def speed_bar(measurement: MeasurementRecord, scale: float) -> Markup:
    """Tokens/s from 0 to ``scale``: the value as a bar, repeats as dots, the baseline as a line, its bound dashed."""
    value = measurement.output_tokens_per_second
    words = [f"{value:.1f} tokens/s at {measurement.workload}"]
    parts = [
        rect(0, value / scale, "bar void" if measurement.void else f"bar {measurement.verdict_state or ''}".strip())
    ]
    parts += [dot(repeat / scale) for repeat in measurement.repeats if len(measurement.repeats) > 1]
    if measurement.baseline_mean is not None:
        words.append(f"baseline {measurement.baseline_mean:.1f}")
        parts.append(tick(measurement.baseline_mean / scale, "base"))
    if measurement.baseline_bound is not None:
        words.append(f"slowest that passes {measurement.baseline_bound:.1f}")
        parts.append(tick(measurement.baseline_bound / scale, "bound"))
    return svg(", ".join(words), parts)


def accept_bar(accept_length: float, floor: float | None, scale: float) -> Markup:
    """Accept length from 1 (no draft token accepted) to ``scale``, the floor as a line."""
    span = max(scale - 1, 1e-9)
    below = floor is not None and accept_length < floor
    parts = [rect(0, (accept_length - 1) / span, "bar regression" if below else "bar accept")]
    words = [f"accept length {accept_length:.2f}"]
    if floor is not None:
        parts.append(tick((floor - 1) / span, "base"))
        words.append(f"floor {floor:.2f}")
    return svg(", ".join(words), parts)


def startup_bar(launch: LaunchRecord, scale: float) -> Markup:
    """Start-up seconds from 0 to ``scale``, one stretch for each phase, the phase of a failure marked."""
    parts = []
    for span, seconds, died in phases(launch):
        shown = "died" if died else phase_class(span.name)
        parts.append(rect(span.begin / scale, seconds / scale, shown))
    if not parts:
        parts.append(rect(0, launch.startup_seconds / scale, "died" if launch.state == "failed" else "p-other"))
    verb = "ready after" if launch.state == "ready" else "failed after"
    return svg(f"{verb} {launch.startup_seconds:.1f} s", parts)


def phases(launch: LaunchRecord) -> list[tuple[PhaseSpan, float, bool]]:
    """The phases that took time, with their seconds and whether the launch failed in them.

    A log tells of a phase when it speaks of it, often only at its end. So a phase lasts until the next one begins, and
    the stretches add up to the launch's seconds; what comes before the first is ``start``.
    """
    found: list[tuple[PhaseSpan, float, bool]] = []
    failed_in = (launch.diagnosis or {}).get("phase") if launch.state == "failed" else None
    spans = _joined(launch.phases)
    if spans and spans[0].begin > 0:
        found.append((PhaseSpan("start", 0.0, spans[0].begin), spans[0].begin, False))
    for index, span in enumerate(spans):
        died = launch.state == "failed" and (span.end is None or span.name == failed_in)
        end = launch.startup_seconds if span.end is None else span.end
        if index + 1 < len(spans):
            end = max(end if span.end is not None else span.begin, spans[index + 1].begin)
        elif launch.state == "ready" or died:
            end = max(end, launch.startup_seconds)
        if end > span.begin or died:
            found.append((span, max(end - span.begin, 0.0), died))
    if launch.state == "failed" and launch.phases and not any(died for _, _, died in found):
        # The phase of the diagnosis may have logged nothing before the end: it has what time is left.
        last = max(span.end or span.begin for span in launch.phases)
        left = PhaseSpan(str(failed_in or "unknown"), last, None)
        found.append((left, max(launch.startup_seconds - last, 0.0), True))
    return found


def _joined(spans: Iterable[PhaseSpan]) -> list[PhaseSpan]:
    """``spans`` in order, those of one phase that follow one another as one."""
    joined: list[PhaseSpan] = []
    for span in spans:
        if joined and joined[-1].name == span.name:
            joined[-1] = PhaseSpan(span.name, joined[-1].begin, span.end)
        else:
            joined.append(span)
    return joined


def phase_class(name: str) -> str:
    """The colour class of a phase."""
    known = ("dist_init", "weight_load", "draft_load", "kv_pool", "warmup", "preflight")
    if name in known:
        return f"p-{name}"
    return "p-capture" + ("-draft" if "draft" in name else "") if name.startswith("capture") else "p-other"


def scale_of(values: Iterable[float | None]) -> float:
    """The length of an axis that holds all ``values``: a little more than the largest, never 0."""
    return max((value for value in values if value is not None), default=0.0) * 1.04 or 1.0
