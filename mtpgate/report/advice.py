"""What to do next, in words: from a diagnosis where there is one, else from the check that failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtpgate.report.text import number

_USUAL: Mapping[str, str] = {
    "startup": "Read the end of the server's log, then start this cell alone.",
    "parity": "Run this cell alone; if it differs again, speculation changes answers.",
    "acceptance": "See whether the draft weights, num_steps or the template changed.",
    "throughput": "See if accept length or step time moved; then run this cell alone.",
    "serving": "Read the server's log around the time of the failure.",
}


def next_step(check: str, state: str, diagnosis: Mapping[str, object] | None) -> str:
    """One sentence: what a person does about ``check`` in ``state``."""
    if state == "fixed":
        return "It passes again: remove its waiver (known-bad mark), so that the next failure is seen."
    if state == "broken":
        return "Look at the machine first: `python -m mtpgate doctor`; then run this cell again."
    advice = advice_lines(diagnosis) if check == "startup" else []
    if advice:
        first = advice[0]
        return f"{first[:1].upper()}{first[1:]}{'' if first.endswith(('.', '!', '?')) else '.'}"
    return _USUAL.get(check, "Run this cell alone.")


def advice_lines(diagnosis: Mapping[str, object] | None) -> list[str]:
    """The diagnosis' advice, the most useful first: its sentences, else one change a line made of its figures."""
    advice = _advice(diagnosis)
    sentences = advice.get("text")
    if isinstance(sentences, list | tuple) and sentences:
        return [str(sentence) for sentence in sentences]
    lines = []
    direction = advice.get("mem_fraction_static")
    if direction:
        bounds = [f"at most {number(advice['max'])}" if _is_number(advice.get("max")) else ""]
        bounds += [f"at least {number(advice['min'])}" if _is_number(advice.get("min")) else ""]
        said = " and ".join(bound for bound in bounds if bound)
        lines.append(f"{direction} mem_fraction_static{': ' + said if said else ''}")
    other = advice.get("other")
    if isinstance(other, list | tuple):
        lines += [str(item).rstrip(".") for item in other]
    return lines


def advice_figures(diagnosis: Mapping[str, object] | None) -> list[tuple[str, str]]:
    """The figures of the advice by name: bounds, the suggestion with its margin and what it costs in KV tokens."""
    advice = {name: value for name, value in _advice(diagnosis).items() if _is_number(value)}
    suggested = f"mem_fraction_static {number(advice['suggested'])}" if "suggested" in advice else ""
    if suggested and "margin_gib" in advice:
        suggested += f", within the bound by {advice['margin_gib']:.1f} GiB"
    kept = f"{advice['kv_tokens']:,.0f} at the suggestion" if "kv_tokens" in advice else ""
    lost = f"{advice['kv_tokens_lost']:,.0f} fewer than now" if "kv_tokens_lost" in advice else ""
    found = {
        "Largest fraction": number(advice["max"]) if "max" in advice else "",
        "Smallest fraction": number(advice["min"]) if "min" in advice else "",
        "Suggested": suggested,
        "KV tokens": ", ".join(part for part in (kept, lost) if part),
        "Graph batch limit": f"{advice['graph_max_bs']:.0f} alone should do" if "graph_max_bs" in advice else "",
    }
    return [(name, text) for name, text in found.items() if text]


def useless_advice(diagnosis: Mapping[str, object] | None) -> list[str]:
    """What the log may suggest and what would not help."""
    found = (diagnosis or {}).get("not_advice")
    return [str(item) for item in found] if isinstance(found, list | tuple) else []


def _advice(diagnosis: Mapping[str, object] | None) -> Mapping[str, Any]:
    advice = (diagnosis or {}).get("advice")
    return advice if isinstance(advice, Mapping) else {}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
