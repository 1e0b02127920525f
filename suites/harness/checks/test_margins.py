"""Rounding is told from faults: on a toy model whose logits are moved as much as a batch shape moves them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mtpgate.checks.answers import Answers
from mtpgate.checks.control import Control
from mtpgate.checks.forcing import forcing
from mtpgate.checks.logprobs import Position, forced_positions, output_positions
from mtpgate.checks.margins import NearTie, agreeing, judge
from mtpgate.checks.parity import ParityReport, compare_answers
from mtpgate.server.client import ServerError
from suites.harness.checks.toy import LENGTH, PROMPTS, TEXTS, Toy, ask, control_of


def judged(toy: Toy, control: Control, reference: Answers, given: Answers) -> tuple[ParityReport, tuple[NearTie, ...]]:
    return judge(compare_answers(reference, given), given, control, force=toy.force, texts=TEXTS)


@pytest.mark.parametrize("rounding", [1e-7, 1e-3, 0.02])
def test_twenty_clean_cells_diverge_nowhere_and_every_seeded_token_is_found(rounding: float) -> None:
    toy = Toy(rounding, random.Random(1))
    control, reference = control_of(toy)
    assert control.usable
    near = 0
    for seed in range(20):
        clean = replace(toy, generator=random.Random(100 + seed))
        report, ties = judged(clean, control, reference, ask(clean))
        assert report.ok, report.message()
        assert len(ties) == report.near_ties
        near += len(ties)
        broken, _ = judged(clean, control, reference, ask(clean, wrong={"prose-3": 10}))
        assert [difference.prompt_id for difference in broken.differences] == ["prose-3"]
    # With rounding of 0.02 some of 20 x 12 x 32 choices turn; with 1e-7 none.
    assert rounding == 1e-3 or (near > 0) == (rounding > 0.01)


def test_a_fault_behind_a_near_tie_is_found_by_teacher_forcing() -> None:
    toy = Toy(0.0, random.Random(1))
    control, reference = control_of(toy)
    prompt = PROMPTS["prose-0"]
    answer = list(reference.answers["prose-0"].output_ids)
    # A reference whose first choice leads by next to nothing, a cell that takes the second, and goes wrong later.
    table = list(control.tables["single"]["prose-0"])
    (best, first), (_, second), *rest = table[0].top
    table[0] = Position(((best, first), (best - control.tolerance / 2, second), *rest), (best, first))
    tied = replace(control, tables={"single": {**control.tables["single"], "prose-0": tuple(table)}})
    turned = [second]
    while len(turned) < LENGTH:
        turned.append(toy.top([*prompt, *turned])[0][1])

    def forced(name: str, text: str, tokens: Sequence[int]) -> tuple[Position, ...]:
        found = list(toy.force(name, text, tokens))
        found[0] = Position(table[0].top, (best - control.tolerance / 2, second)) if tokens[0] == second else found[0]
        return tuple(found)

    def outcome(tokens: list[int]) -> ParityReport:
        own = replace(reference.answers["prose-0"], output_ids=tuple(tokens))
        given = replace(reference, answers={**reference.answers, "prose-0": own})
        return judge(compare_answers(reference, given), given, tied, force=forced, texts=TEXTS)[0]

    assert outcome(turned).near_ties == 1
    wrong = [*turned]
    wrong[20] = toy.top([*prompt, *wrong[:20]])[4][1]
    wrong[21:] = []
    while len(wrong) < LENGTH:
        wrong.append(toy.top([*prompt, *wrong])[0][1])
    report = outcome(wrong)
    assert not report.ok
    assert "by its own target's prefill the answer is wrong by" in report.differences[0].note
    assert report.differences[0].note.endswith("at 20")
    assert answer != wrong


def test_a_divergence_has_both_probabilities_and_the_end_of_the_near_ties() -> None:
    toy = Toy(1e-6, random.Random(1))
    control, reference = control_of(toy)
    report, _ = judged(toy, control, reference, ask(toy, wrong={"prose-5": 4}))
    said = report.message()
    assert report.differences[0].position == 4
    assert "the reference gave its token" in said
    assert " % and this one " in said
    assert "near-ties end at" in said
    assert (report.same, report.near_ties) == (11, 0)


def test_a_reference_that_moves_as_much_as_its_leads_is_no_control() -> None:
    control, _ = control_of(Toy(2.0, random.Random(1)))
    assert not control.usable
    assert control.turned
    assert control.message().startswith("control too noisy")
    assert "The reference may be the broken side" in control.message()


def test_differences_that_are_not_of_tokens_stay() -> None:
    toy = Toy(0.0, random.Random(1))
    control, reference = control_of(toy)
    short = replace(reference.answers["prose-1"], output_ids=reference.answers["prose-1"].output_ids[:-1])
    given = replace(reference, answers={**reference.answers, "prose-1": short})
    report, ties = judged(toy, control, reference, given)
    assert [difference.what for difference in report.differences] == ["length"]
    assert not ties


def test_when_nothing_can_be_weighed_the_difference_stays_and_says_so() -> None:
    toy = Toy(0.0, random.Random(1))
    control, reference = control_of(toy)

    def refuse(name: str, text: str, tokens: Sequence[int]) -> tuple[Position, ...]:
        raise ServerError("no logprobs here")

    given = ask(toy, wrong={"prose-5": 4})
    report, _ = judge(compare_answers(reference, given), given, control, force=refuse, texts=TEXTS)
    assert "could not be weighed by teacher forcing: no logprobs here" in report.differences[0].note


def test_cells_that_agree_against_the_reference_are_named() -> None:
    toy = Toy(0.0, random.Random(1))
    control, reference = control_of(toy)
    other, third = ask(toy, wrong={"prose-5": 4}), ask(toy, wrong={"prose-5": 9})
    report, _ = judged(toy, control, reference, other)
    assert agreeing(report, other, [("a", other), ("b", third), ("c", reference)]) == ("a",)
    assert agreeing(compare_answers(reference, reference), reference, [("a", reference)]) == ()


def test_forcing_gives_prompt_and_answer_back_and_reads_the_answer_s_positions() -> None:
    asked = []

    def generate(body: object) -> object:
        asked.append(body)
        inputs = [[None, 1, None], [-0.5, 8, None], [-0.1, 9, None]]
        top = [None, [[-0.2, 7, None], [-0.5, 8, None]], [[-0.1, 9, None], [-3.0, 4, None]]]
        return {"meta_info": {"input_token_logprobs": inputs, "input_top_logprobs": top}}

    positions = forcing(generate, lambda text: [len(text), 1])("p", "abc", [8, 9])
    assert asked[0]["input_ids"] == [3, 1, 8, 9]
    assert (asked[0]["logprob_start_len"], asked[0]["sampling_params"]["max_new_tokens"]) == (1, 1)
    assert [position.best for position in positions] == [7, 9]
    assert positions[0].gap(8).value == pytest.approx(0.3)
    with pytest.raises(ServerError, match="weighed other tokens"):
        forcing(generate, lambda text: [1])("p", "abc", [8, 8])


def test_gap_of_a_token_that_is_not_told_is_a_bound() -> None:
    position = Position(((-0.1, 5), (-2.0, 6)), (-0.1, 5))
    assert (position.gap(6).value, position.gap(6).exact) == (pytest.approx(1.9), True)
    assert (position.gap(9).value, position.gap(9).exact, str(position.gap(9))) == (1.9, False, "at least 1.9")
    assert position.lead == pytest.approx(1.9)


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"output_token_logprobs": [[-1.0, 2, None]], "output_top_logprobs": []},
        {"output_token_logprobs": [["x", 2, None]], "output_top_logprobs": [[[-1.0, 2, None]]]},
        {"output_token_logprobs": [[-1.0, 2, None]], "output_top_logprobs": [[]]},
    ],
)
def test_answers_without_log_probabilities_are_refused_by_name(meta: dict[str, object]) -> None:
    with pytest.raises(ServerError, match="prose-1"):
        output_positions("prose-1", meta)


def test_an_empty_answer_has_no_positions() -> None:
    assert forced_positions("p", {}, 0) == ()
