"""Acceptance under load: by concurrency, against the recorded baseline, and beside what became of the speed.

Every load of a cell is judged as :mod:`mtpgate.checks.acceptance` does: identities, floor, interval over prompts. What
only several figures show comes on top:

* **Falling with concurrency.** Which drafts are accepted does not depend on how many requests run beside; only the
  last bits of the logits do, which flip a few drafts either way. A load sends the same first prompts as a longer one,
  so the higher concurrency is compared with the lowest prompt by prompt. An alarm needs a ratio below LARGEST_FALL
  *and* an interval that ends below 1. Loads without prompts in common need disjoint intervals instead.
* **Against the baseline.** The accepted launches hold tokens and steps by prompt, so this launch is compared with their
  sums prompt by prompt; launches recorded without those give only the mean of their accept lengths, which then has to
  lie outside this launch's own interval. A change is at least SMALLEST_CHANGE and its interval excludes 1, at the
  false-alarm rate of one figure of the night (``alpha``, as for speeds).
* **Beside the speed.** Tokens/s = accept length / step time, so of the three ratios two determine the third. A fall of
  the acceptance is always an alarm, and the words say whether step time or speed stayed. A rise without a change of
  the speed is one too: steps got slower, or the counts are wrong. A change of the speed alone is the step time's, and
  is judged by the throughput check. "No change" of speed or step time is a ratio within what the speed's own verdict
  calls chance or too small.

Nothing here passes silently what it cannot tell: ``undecided`` has the reasons.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from mtpgate.checks.acceptance import AcceptanceReport, judge_acceptance
from mtpgate.checks.interval import Interval, ratio_change
from mtpgate.judge.baselines import BaselineLaunch
from mtpgate.judge.verdict import DEFAULT_ALPHA, Verdict
from mtpgate.load.measurement import Measurement, RequestRecord
from mtpgate.load.prompts import kind_of
from mtpgate.matrix.cell import Cell

LARGEST_FALL = 0.9
"""Ratio of accept lengths, high to low concurrency, that is still scatter. Batch shapes flip single drafts: on answers
of 32 tokens one flip is 3 to 5 % of a prompt's steps, and flips of both signs average out over prompts."""

SHOWN_KINDS = 3
"""Kinds of prompts that a finding names: those that changed most."""

SMALLEST_CHANGE = 0.03
"""Relative change against the baseline that is worth an alarm: the default minimum effect of speeds, for a fall of the
acceptance by 3 % is a fall of the speed by 3 %."""


@dataclass(frozen=True)
class Loaded:
    """One load of a cell: what was measured, what was said of its speed, what it is compared with."""

    measurement: Measurement
    verdict: Verdict | None = None
    """Of its speed; None if that was not judged."""
    baseline: tuple[BaselineLaunch, ...] = ()


@dataclass(frozen=True)
class Change:
    """The accept length of a load against its baseline's."""

    before: float
    now: float
    ratio: Interval
    speed: float | None
    """Tokens/s now / baseline; None if not judged."""
    resolution: float
    """Relative change of the speed that is chance or too small; of the step time likewise."""
    by_kind: Mapping[str, float] = field(default_factory=dict)
    """Now / baseline of each kind of prompt that both have, for where to look; no verdict is made of so few prompts."""

    @property
    def step_time(self) -> float | None:
        """Now / baseline; above 1 is slower."""
        return None if self.speed is None else self.ratio.value / self.speed

    @property
    def moved(self) -> Literal["fell", "rose", "stayed", "undecided"]:
        """Of the accept length."""
        if abs(self.ratio.value - 1) < SMALLEST_CHANGE:
            return "stayed"
        if self.ratio.low <= 1 <= self.ratio.high:
            return "undecided"
        return "fell" if self.ratio.value < 1 else "rose"

    def stayed(self, ratio: float | None) -> bool:
        """Whether a ratio of speeds or step times is no change."""
        return ratio is not None and abs(ratio - 1) <= self.resolution


@dataclass(frozen=True)
class LoadReport:
    """The acceptance of a cell under its loads."""

    cell_id: str
    by_load: Mapping[str, AcceptanceReport] = field(default_factory=dict)
    changes: Mapping[str, Change] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing is wrong; whether enough is known for a pass, ``undecided`` says."""
        return not self.findings

    def message(self) -> str:
        """What is wrong or undecided first, for reports quote the first line; then the figures by load."""
        loads = ", ".join(
            f"{name} {report.overall.interval or f'{report.accept_length or 0:.2f}'}"
            for name, report in self.by_load.items()
        )
        figures = f"accept length under load: {loads or 'not measured'}"
        return f"{self.cell_id}: " + "\n  ".join([*self.findings, *self.undecided, figures, *self.notes])

    def figures(self) -> dict[str, object]:
        """All of it as the store keeps it."""
        return {
            "by_load": {name: report.figures() for name, report in self.by_load.items()},
            "against_baseline": {
                name: asdict(change) | {"step_time": change.step_time, "moved": change.moved}
                for name, change in self.changes.items()
            },
            "findings": list(self.findings),
            "undecided": list(self.undecided),
            "notes": list(self.notes),
        }


def judge_under_load(cell: Cell, loads: Sequence[Loaded], *, alpha: float = DEFAULT_ALPHA) -> LoadReport:
    """Judge all loads of a cell's one launch, in any order."""
    findings: list[str] = []
    undecided: list[str] = []
    notes: list[str] = []
    by_load: dict[str, AcceptanceReport] = {}
    changes: dict[str, Change] = {}
    sound: list[Loaded] = []
    for load in sorted(loads, key=lambda load: load.measurement.concurrency):
        name, void = load.measurement.workload, load.measurement.void
        if void is not None:
            undecided.append(f"{name}: void, not judged: {void}")
            continue
        report = by_load[name] = judge_acceptance(cell, _records(load.measurement))
        findings += [f"{name}: {text}" for text in report.findings]
        undecided += [f"{name}: {report.undecided}"] if report.undecided else []
        change = _change(load, report, alpha)
        if change is not None:
            changes[name] = change
            for words, kept in ((_alarm(change), findings), (_doubt(change), undecided), (_note(change), notes)):
                if words is not None:
                    kept.append(f"{name}: {words}")
        sound.append(load)
    for words, certain in _falls(sound, by_load):
        (findings if certain else undecided).append(words)
    return LoadReport(cell.id, by_load, changes, tuple(findings), tuple(undecided), tuple(notes))


def _records(measurement: Measurement) -> list[RequestRecord]:
    return [record for repeat in measurement.repeats for record in repeat.records]


def _falls(loads: Sequence[Loaded], by_load: Mapping[str, AcceptanceReport]) -> Iterator[tuple[str, bool]]:
    """What is wrong with each load against that of the lowest concurrency, and whether that is certain."""
    for high in loads[1:]:
        low = loads[0]
        name, lowest = high.measurement.workload, low.measurement.workload
        change = _between(low, high, by_load)
        if change is None or change.value >= LARGEST_FALL:
            continue
        what = (
            f"acceptance falls with concurrency: x{change.value:.2f} ({change.low:.2f} to {change.high:.2f}) from "
            f"{lowest} to {name}, over {change.clusters} prompts{_most_changed(_shared_kinds(low, high, by_load))}"
        )
        if change.high < 1:
            yield (
                f"{what}: requests of one batch disturb each other's drafts (draft KV cache, tree mask, positions)",
                True,
            )
        else:
            yield f"{what}: too few prompts to say", False


def _shared_kinds(low: Loaded, high: Loaded, by_load: Mapping[str, AcceptanceReport]) -> dict[str, float]:
    a, b = by_load[low.measurement.workload].overall, by_load[high.measurement.workload].overall
    return _by_kind(b.prompts, a.prompts) if _same_text(low, high) else {}


def _same_text(low: Loaded, high: Loaded) -> bool:
    """Whether a prompt's id means the same text and length of answer in both."""
    sizes = [(load.measurement.input_tokens, load.measurement.output_tokens) for load in (low, high)]
    return sizes[0] == sizes[1]


def _between(low: Loaded, high: Loaded, by_load: Mapping[str, AcceptanceReport]) -> Interval | None:
    """The ratio of accept lengths, high / low, over the prompts that both sent; else over all of each."""
    a, b = by_load[low.measurement.workload].overall, by_load[high.measurement.workload].overall
    shared = sorted(set(a.prompts) & set(b.prompts)) if _same_text(low, high) else []
    paired = ratio_change([b.prompts[id_] for id_ in shared], [a.prompts[id_] for id_ in shared])
    if paired is not None:
        return paired
    if a.interval is None or b.interval is None:
        return None
    # Disjoint intervals of low and high are this interval's excluding 1.
    value = b.interval.value / a.interval.value
    ends = b.interval.low / a.interval.high, b.interval.high / a.interval.low
    return Interval(value, *ends, min(a.interval.clusters, b.interval.clusters))


def _change(load: Loaded, report: AcceptanceReport, alpha: float) -> Change | None:
    now, before = report.overall.prompts, _summed(load.baseline)
    shared = sorted(set(now) & set(before))
    old = [before[id_] for id_ in shared]
    ratio = ratio_change([now[id_] for id_ in shared], old, confidence=1 - 2 * alpha)
    if ratio is not None:
        mean = sum(tokens for tokens, _ in old) / sum(steps for _, steps in old)
    else:
        lengths = [launch.accept_length for launch in load.baseline if launch.accept_length]
        interval = report.overall.interval
        if not lengths or interval is None:
            return None
        mean = statistics.fmean(lengths)
        ratio = Interval(interval.value / mean, interval.low / mean, interval.high / mean, interval.clusters)
    speed, resolution = None, math.inf
    verdict = load.verdict
    if verdict is not None and verdict.effect is not None and verdict.baseline_mean and verdict.lower_bound is not None:
        speed, resolution = 1 + verdict.effect, 1 - verdict.lower_bound / verdict.baseline_mean
    return Change(mean, mean * ratio.value, ratio, speed, resolution, _by_kind(now, before))


def _by_kind(now: Mapping[str, tuple[int, int]], before: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """The ratio of accept lengths, now / before, over the prompts of each kind that both have."""
    sums: dict[str, list[int]] = {}
    for id_ in sorted(set(now) & set(before)):
        counts = sums.setdefault(kind_of(id_), [0, 0, 0, 0])
        for place, number in enumerate((*now[id_], *before[id_])):
            counts[place] += number
    return {kind: (a / b) / (c / d) for kind, (a, b, c, d) in sums.items() if a and b and c and d}


def _most_changed(by_kind: Mapping[str, float]) -> str:
    """The kinds that changed most, in words; nothing where there is one kind only."""
    if len(by_kind) <= 1:
        return ""
    ranked = sorted(by_kind.items(), key=lambda item: -abs(math.log(item[1])))
    return "; by kind: " + ", ".join(f"{kind} x{ratio:.2f}" for kind, ratio in ranked[:SHOWN_KINDS])


def _summed(baseline: Sequence[BaselineLaunch]) -> dict[str, tuple[int, int]]:
    tokens: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    for launch in baseline:
        for id_, (made, verified) in (launch.accept_counts or {}).items():
            tokens[id_] += made
            steps[id_] += verified
    return {id_: (tokens[id_], steps[id_]) for id_ in tokens}


def _alarm(change: Change) -> str | None:
    if change.moved not in ("fell", "rose"):
        return None
    what = (
        f"acceptance {change.moved} from {change.before:.2f} to {change.now:.2f} "
        f"(x{change.ratio.value:.2f}, {change.ratio.low:.2f} to {change.ratio.high:.2f}"
        f"{_most_changed(change.by_kind)})"
    )
    step, speed = change.step_time, change.speed
    if step is None or speed is None:
        return f"{what}; the speed was not judged" if change.moved == "fell" else None
    if change.stayed(speed) and not change.stayed(step):
        steps = f"steps are {'slower' if step > 1 else 'faster'} (x{step:.2f})"
        return f"{what} without a change in speed (x{speed:.2f}): {steps}, or the counts are wrong"
    if change.moved == "rose":
        return None
    if change.stayed(step):
        return f"{what} while step time is unchanged (x{step:.2f}): the drafts got worse; speed x{speed:.2f}"
    return f"{what}, and step time changed (x{step:.2f}); speed x{speed:.2f}"


def _doubt(change: Change) -> str | None:
    if change.moved != "undecided":
        return None
    ratio = change.ratio
    return (
        f"acceptance {change.before:.2f} to {change.now:.2f} against the baseline (x{ratio.value:.2f}, {ratio.low:.2f} "
        f"to {ratio.high:.2f}): a change or chance, {ratio.clusters} prompts are too few to say"
    )


def _note(change: Change) -> str | None:
    step, speed = change.step_time, change.speed
    if change.moved == "rose" and _alarm(change) is None:
        return f"acceptance rose from {change.before:.2f} to {change.now:.2f}: the baseline is stale"
    if change.moved == "stayed" and step is not None and speed is not None and not change.stayed(speed):
        verb = "fell" if speed < 1 else "rose"
        return f"speed {verb} (x{speed:.2f}) with acceptance unchanged ({change.now:.2f}): step time (x{step:.2f})"
    return None
