"""The evaluation of the rule as a table for people and as JSON for scripts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table

from mtpgate.judge.evaluation import CREEP, CREEP_NIGHTS, DROPS, FIGURES, RULES, Creep, Rates, Row


def table(rows: Iterable[Row]) -> Table:
    """One line a scenario and rule: false alarms per night, and drops found in one night and within five."""
    rows = list(rows)
    nights = rows[0].matrix_nights if rows else 0
    found = Table(
        title=f"A matrix of {FIGURES} figures, {nights:,} simulated nights a row; meant are 1 % false alarms",
        title_justify="left",
    )
    for heading in ("noise of a launch", "sd", "accepted", "rule"):
        found.add_column(heading)
    found.add_column("false alarms\na night", justify="right")
    for drop in DROPS:
        found.add_column(f"{drop:.0%} drop found\n1 night / 5", justify="right")
    for row in rows:
        scenario = row.scenario
        named = [scenario.kind, f"{scenario.noise:.1%}", str(scenario.accepted)]
        for name in RULES:
            found.add_row(*named, name, *_figures(row.rules[name]), style="bold" if name == "mtpgate" else None)
            named = ["", "", ""]
        found.add_section()
    return found


def creep_words(found: Creep) -> str:
    """A slow drift that every night's accept follows, in one sentence a rule."""
    said = (
        f"{name}: {f'found at -{drop:.1%}' if drop is not None else f'not within {CREEP_NIGHTS} nights'}"
        for name, drop in found.rules.items()
    )
    return (
        f"A drift of {CREEP:.1%} a night, every night accepted (independent noise of 1 %, the median figure): "
        + "; ".join(said)
    )


def as_json(rows: Iterable[Row], found: Creep) -> dict[str, Any]:
    """Rates and drops from 0 to 1."""
    return {"scenarios": _scenarios(rows), "drift": {"a_night": CREEP, "found_at_drop": dict(found.rules)}}


def _scenarios(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [
        {
            "noise": row.scenario.kind,
            "standard_deviation": row.scenario.noise,
            "accepted": row.scenario.accepted,
            "matrix_nights": row.matrix_nights,
            "rules": {
                name: {
                    "false_alarms_a_night": rates.false_alarms,
                    "found_in_one_night": {str(drop): rate for drop, rate in rates.one_night.items()},
                    "found_within_five": {str(drop): rate for drop, rate in rates.within_five.items()},
                }
                for name, rates in row.rules.items()
            },
        }
        for row in rows
    ]


def _figures(rates: Rates) -> list[str]:
    return [
        f"{rates.false_alarms:.2%}",
        *(f"{rates.one_night[drop]:.0%} / {rates.within_five[drop]:.0%}" for drop in DROPS),
    ]
