"""What to do next, in words: from a diagnosis where there is one, else from the check that failed."""

from __future__ import annotations

from collections.abc import Mapping

_USUAL: Mapping[str, str] = {
    "startup": "Read the end of the server's log, then start this cell alone.",
    "parity": "Run this cell alone; if it differs again, speculation changes answers.",
    "acceptance": "See whether the draft weights, num_steps or the template changed.",
    "throughput": "Run it alone; if slow again, see if accept length or step time moved.",
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
        return f"{advice[0][0].upper()}{advice[0][1:]}."
    return _USUAL.get(check, "Run this cell alone.")


def advice_lines(diagnosis: Mapping[str, object] | None) -> list[str]:
    """The diagnosis' advice, one change a line: the memory fraction with its bound first."""
    advice = (diagnosis or {}).get("advice")
    if not isinstance(advice, Mapping):
        return []
    lines = []
    direction = advice.get("mem_fraction_static")
    if direction:
        bounds = [f"at most {_number(advice['max'])}" if _is_number(advice.get("max")) else ""]
        bounds += [f"at least {_number(advice['min'])}" if _is_number(advice.get("min")) else ""]
        said = " and ".join(bound for bound in bounds if bound)
        lines.append(f"{direction} mem_fraction_static{': ' + said if said else ''}")
    other = advice.get("other")
    if isinstance(other, list | tuple):
        lines += [str(item).rstrip(".") for item in other]
    return lines


def useless_advice(diagnosis: Mapping[str, object] | None) -> list[str]:
    """What the log may suggest and what would not help."""
    found = (diagnosis or {}).get("not_advice")
    return [str(item) for item in found] if isinstance(found, list | tuple) else []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: object) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, int | float) else str(value)
