"""Answers that left the reference's are weighed by the reference, over their whole length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from mtpgate.checks.answers import Answers
from mtpgate.checks.control import Control, calibrate, table_of
from mtpgate.checks.logprobs import Position
from mtpgate.checks.margins import NearTie, judge
from mtpgate.checks.parity import ParityReport, compare_answers
from mtpgate.checks.weighing import NOT_OF_TOKENS, Scales, answers_alike, relaunched, weigh
from suites.harness.checks.toy import LENGTH, PROMPTS, TEXTS, Toy, ask, control_of


def decode(tokens: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


def scales(toy: Toy) -> Scales:
    return Scales(toy.force, TEXTS, decode)


def weighed(toy: Toy, control: Control, reference: Answers, given: Answers) -> tuple[ParityReport, tuple[NearTie, ...]]:
    return weigh(compare_answers(reference, given), given, control, scales(toy))


def test_rounding_alone_is_weighed_as_near_ties() -> None:
    toy = Toy(0.02, random.Random(1))
    control, reference = control_of(toy)
    found = 0
    for seed in range(20):
        report, ties = weighed(toy, control, reference, ask(replace(toy, generator=random.Random(seed))))
        assert report.ok, report.message()
        found += len(ties)
    assert found > 0


def test_a_wrong_token_is_told_with_both_tokens_probabilities_and_the_text_around() -> None:
    toy = Toy(1e-6, random.Random(1))
    control, reference = control_of(toy)
    given = ask(toy, wrong={"prose-5": 4})
    report, ties = weighed(toy, control, reference, given)
    (difference,) = report.differences
    right, wrong = (answers.answers["prose-5"].output_ids for answers in (reference, given))
    assert not ties
    assert difference.position == 4
    assert difference.expected == f"token {right[4]} '<{right[4]}>'"
    assert difference.found == f"token {wrong[4]} '<{wrong[4]}>'"
    assert difference.expected_text == decode(right[:5])
    assert difference.found_text == decode(wrong[:28])
    assert "the reference gave its token" in difference.note and " % and this one " in difference.note
    assert "near-ties end at" in difference.note


class Tied:
    """A toy whose first tokens of one prompt are a near-tie, and an answer that takes the second of them."""

    def __init__(self) -> None:
        self.toy = Toy(0.0, random.Random(1))
        self.control, self.reference = control_of(self.toy)
        table = list(self.control.tables["single"]["prose-0"])
        (best, first), (_, second), *rest = table[0].top
        self.second = (best - self.control.tolerance / 2, second)
        self.top = ((best, first), self.second, *rest)

    def answer(self, wrong_at: int | None = None) -> Answers:
        tokens = [self.second[1]]
        while len(tokens) < LENGTH:
            tokens.append(self.toy.top([*PROMPTS["prose-0"], *tokens])[3 if len(tokens) == wrong_at else 0][1])
        own = replace(self.reference.answers["prose-0"], output_ids=tuple(tokens))
        return replace(self.reference, answers={**self.reference.answers, "prose-0": own})

    def force(self, name: str, text: str, tokens: Sequence[int]) -> tuple[Position, ...]:
        found = list(self.toy.force(name, text, tokens))
        if tokens[0] == self.second[1]:
            found[0] = Position(self.top, self.second)
        return tuple(found)

    def outcome(self, given: Answers) -> tuple[ParityReport, tuple[NearTie, ...]]:
        return weigh(compare_answers(self.reference, given), given, self.control, Scales(self.force, TEXTS, decode))


def test_a_fault_behind_a_near_tie_is_found_where_it_is() -> None:
    tied = Tied()
    report, ties = tied.outcome(tied.answer())
    assert report.ok and ties[0].position == 0
    report, ties = tied.outcome(tied.answer(wrong_at=20))
    (difference,) = report.differences
    assert not ties
    assert difference.position == 20
    assert difference.note.endswith("it had left the reference at 0 already, at a near-tie")


def test_an_answer_that_several_compositions_gave_is_weighed_once() -> None:
    toy = Toy(0.0, random.Random(1))
    asked = []

    def force(name: str, text: str, tokens: Sequence[int]) -> tuple[Position, ...]:
        asked.append(name)
        return toy.force(name, text, tokens)

    control, reference = control_of(toy)
    once = Scales(force, TEXTS, decode)
    for composition in ("single", "batch"):
        given = ask(toy, composition, wrong={"prose-5": 4})
        report, _ = weigh(compare_answers(replace(reference, composition=composition), given), given, control, once)
        assert len(report.differences) == 1
    assert asked == ["prose-5"]


def test_a_difference_that_is_not_of_tokens_stays() -> None:
    toy = Toy(0.0, random.Random(1))
    control, reference = control_of(toy)
    short = replace(reference.answers["prose-1"], output_ids=reference.answers["prose-1"].output_ids[:-1])
    given = replace(reference, answers={**reference.answers, "prose-1": short})
    report, _ = weighed(toy, control, reference, given)
    assert [(difference.what, difference.note) for difference in report.differences] == [("length", NOT_OF_TOKENS)]


def test_a_reference_that_repeats_itself_up_to_rounding_stays_usable() -> None:
    toy = Toy(0.02, random.Random(1))
    control, reference = control_of(toy)
    again = relaunched({"single": reference}, control, {"single": ask(toy)})
    assert again.usable, again.control.message()
    assert again.control.tolerance >= control.tolerance
    assert again.control.positions > control.positions


def test_a_reference_that_answers_otherwise_after_a_relaunch_is_not_usable() -> None:
    toy = Toy(1e-6, random.Random(1))
    control, reference = control_of(toy)
    again = relaunched({"single": reference}, control, {"single": ask(toy, wrong={"prose-2": 6})})
    assert not again.usable
    (difference,) = again.reports[0].differences
    assert (difference.prompt_id, difference.position) == ("prose-2", 6)
    assert "prose-2 at 6 (single, launched again" in again.control.message()


def test_where_the_references_own_token_is_wrong_it_is_named_and_no_near_tie() -> None:
    toy = Toy(1e-6, random.Random(1))
    broken = ask(toy, wrong={"prose-2": 6})
    right = ask(toy)
    forced = {name: toy.force(name, "", answer.output_ids) for name, answer in broken.answers.items()}
    control = calibrate({"single": table_of(broken), "forced": forced})
    assert not control.usable
    assert "does not choose its own best token: prose-2 at 6" in control.message()
    differing = compare_answers(broken, right)
    for report, ties in (
        weigh(differing, right, control, scales(toy)),
        judge(differing, right, control, force=toy.force, texts=TEXTS),
    ):
        (difference,) = report.differences
        assert not ties
        assert "the reference's own token was not its best there" in difference.note


def test_others_that_give_the_very_answers_are_alike() -> None:
    toy = Toy(0.0, random.Random(1))
    _, reference = control_of(toy)
    mine, same, other = (ask(toy, wrong={"prose-5": at}) for at in (4, 4, 9))
    reports = [compare_answers(reference, mine)]
    assert answers_alike(reports, {"single": mine}, {"single": same})
    assert not answers_alike(reports, {"single": mine}, {"single": other})
    assert not answers_alike([compare_answers(reference, reference)], {"single": reference}, {"single": reference})
