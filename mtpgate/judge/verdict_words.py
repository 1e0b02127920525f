"""A verdict in words: what was found and what moved in the first lines, then what the bound is made of."""

from __future__ import annotations

from collections.abc import Iterator

from mtpgate.judge.bounds import POWER
from mtpgate.judge.figures import Split, Verdict
from mtpgate.judge.noise import Noise
from mtpgate.judge.rule import NIGHTS, Limits


def told(verdict: Verdict, noise: Noise, found: Limits, *, minimum_effect: float, days: int) -> str:
    """All figures of a verdict on a measurement that has a baseline; ``days`` on which it was measured."""
    return "\n  ".join(_lines(verdict, noise, found, minimum_effect, days))


def unstable(first: Verdict, second: Verdict) -> str:
    """A breach that its relaunch did not confirm."""
    name = first.text.split(": ", 1)[0]
    again = "void" if second.state == "void" else f"{second.value:.1f} tok/s"
    return (
        f"{name}: unstable: {first.value:.1f} tok/s breached and the relaunch's {again} did not confirm it, "
        "so this is neither red nor green\n"
        f"1st launch: {_without(name, first.text)}\n2nd launch: {_without(name, second.text)}"
    )


def _without(name: str, text: str) -> str:
    return text.removeprefix(f"{name}: ")


def _lines(verdict: Verdict, noise: Noise, found: Limits, minimum_effect: float, days: int) -> Iterator[str]:
    nights = verdict.nights if "nights" in verdict.breaches and "tonight" not in verdict.breaches else None
    if nights is not None:
        yield (
            f"regression over {nights.count} nights: their mean of {nights.mean:.1f} tok/s is {-nights.effect:.1%} "
            f"below the first baseline's {nights.first_mean:.1f} ({_launches(nights.first_n, days)}); tonight's "
            f"{verdict.value:.1f} alone is no breach"
        )
        bound, drop, chance = nights.lower_bound, 1 - nights.lower_bound / nights.first_mean, nights.chance
    else:
        effect = verdict.effect or 0.0
        yield (
            f"{verdict.state}: {verdict.value:.1f} tok/s is {abs(effect):.1%} {'below' if effect < 0 else 'above'} the "
            f"baseline's {verdict.baseline_mean:.1f} ({_launches(noise.launches, days)})"
        )
        bound, drop, chance = verdict.lower_bound or 0.0, float(found.limit), float(found.chance)
    changed = verdict.state in ("regression", "improvement")
    if changed:
        yield _moved(nights.split if nights is not None else verdict.split)
    yield (
        f"bound {bound:.1f} tok/s ({drop:.1%} below): chance explains {chance:.1%} (launch noise {noise.source}), "
        f"minimum effect {minimum_effect:.1%}"
    )
    if not changed:
        yield _findable(verdict) + _cure(verdict, noise)
    if verdict.state == "improvement":
        yield "the baseline is stale: accept this launch, with the reason for the gain"
    if nights is not None:
        yield "if it is wanted, retire the old launches from the baseline's file, in a change that is reviewed"


def _launches(count: int, days: int) -> str:
    plural = "es" if count > 1 else ""
    alike = f" of {days} day{'s' if days > 1 else ''}" if days < count else ""
    return f"{count} launch{plural}{alike}"


def _moved(split: Split | None) -> str:
    if split is None:
        return "no accept lengths on both sides: all of it counts as step time"
    return f"{split.moved} moved: accept length x{split.acceptance:.3f}, step time x{split.step_time:.3f}"


def _findable(verdict: Verdict) -> str:
    text = f"a drop of {verdict.findable_drop:.1%} would have been found"
    if verdict.nights is not None:
        text += f" tonight, one of {verdict.nights.findable_drop:.1%} over these {verdict.nights.count} nights"
    return f"{text} (power {POWER:g})"


def _cure(verdict: Verdict, noise: Noise) -> str:
    if verdict.state == "pass":
        return ""
    more, left = verdict.more_launches, NIGHTS - (verdict.nights.count if verdict.nights is not None else 1)
    nights = f"{left} more night{'s' if left > 1 else ''}"
    if more == 0:
        return f", a smaller one not reliably: measure {nights}"
    if more is not None:
        also = f" and measure {nights}" if left else ""
        return f", a smaller one not reliably: accept {more} more launch{'es' if more > 1 else ''}{also}"
    if not noise.estimated:
        return ", a smaller one not reliably: accept more launches, until their own spread replaces the declared noise"
    return ", a smaller one not reliably: too noisy for the declared minimum effect; quiet the machine or raise it"
