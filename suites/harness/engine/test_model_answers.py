"""What the small model answers, on a plain forward of transformers' Qwen2 and a plain draft head: no server.

The figures of the default recipe, which the parity, acceptance and throughput suites rest on.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mtpgate.engine.environment import OVERLAY  # noqa: E402
from mtpgate.engine.model import ensure_model  # noqa: E402
from mtpgate.engine.model_reference import DraftHead, accept_length  # noqa: E402
from mtpgate.engine.tokenizer import ALPHABET  # noqa: E402

# One worker builds the model and generates the answers for all tests here.
pytestmark = pytest.mark.xdist_group("small_model")

PROMPTS = {64: 6, 128: 4, 256: 2}
"""Prompt length to number of prompts."""
ANSWER, LONG_ANSWER = 40, 160
TEXT = (Path(__file__).parents[3] / "mtpgate" / "engine" / "model_weights.py").read_bytes()


@dataclass(frozen=True)
class Answers:
    """Greedy continuations of B prompts of one length P."""

    prompt_length: int
    tokens: Any  # [B, P + n]
    hidden: Any  # [B, P + n - 1, H], after the final norm
    logits: Any  # [B, n, V], of the continuation

    def continuations(self) -> list[list[int]]:
        return [row.tolist() for row in self.tokens[:, self.prompt_length :]]


@dataclass(frozen=True)
class Measured:
    plain: list[Answers]
    changed: list[Answers]
    """The same prompts with one of their first four tokens changed."""
    long: Answers
    head: DraftHead

    @cached_property
    def drafts(self) -> list[Any]:
        """[B, T, 3] for each group, drafted as with num_steps 3; a shorter chain is the beginning of a longer one."""
        return [self.head.draft(group.tokens, group.hidden, 3) for group in self.plain]

    def accept_lengths(self, num_steps: int) -> list[float]:
        return [
            length
            for group, drafts in zip(self.plain, self.drafts, strict=True)
            for length in accept_lengths(group, drafts[..., :num_steps])
        ]


def accept_lengths(group: Answers, drafts: Any) -> list[float]:
    return [
        accept_length(tokens, chains, group.prompt_length)
        for tokens, chains in zip(group.tokens.tolist(), drafts.tolist(), strict=True)
    ]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    pytest.importorskip("transformers")
    folder = ensure_model(tmp_path_factory.mktemp("small") / "model")
    with pytest.MonkeyPatch.context() as patch:
        # transformers' models import torchvision, which beside a CPU torch needs the engine's wrapper.
        if "torchvision" not in sys.modules:
            patch.syspath_prepend(str(OVERLAY))
        from transformers import Qwen2ForCausalLM

        loaded, report = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        assert not report["missing_keys"]
        assert all("mtp_layers" in key for key in report["unexpected_keys"])
    yield folder, loaded.eval()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def measured(target: tuple[Path, Any]) -> Iterator[Measured]:
    folder, model = target
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two spinning ones are slower than one as soon as anything else runs
    yield measure(folder, model)
    torch.set_num_threads(threads)


def measure(folder: Path, model: Any) -> Measured:
    plain, changed = [], []
    for length, count in PROMPTS.items():
        starts = range(0, count * 211, 211)
        prompts = [list(TEXT[start : start + length]) for start in starts]
        other = [list(prompt) for prompt in prompts]
        for index, prompt in enumerate(other):
            prompt[index % 4] = ord("Z") if prompt[index % 4] != ord("Z") else ord("Y")
        both = greedy(model, torch.tensor(prompts + other), ANSWER)
        plain.append(Answers(length, both.tokens[:count], both.hidden[:count], both.logits[:count]))
        changed.append(Answers(length, both.tokens[count:], both.hidden[count:], both.logits[count:]))
    long = greedy(model, plain[0].tokens[:2, :64], LONG_ANSWER)
    return Measured(plain, changed, long, DraftHead(folder))


@torch.inference_mode()
def greedy(model: Any, tokens: Any, count: int) -> Answers:
    length = tokens.shape[1]
    output = model.model(tokens, use_cache=True)
    hidden, logits = [output.last_hidden_state], []
    while True:
        logits.append(model.lm_head(hidden[-1][:, -1]))
        chosen = logits[-1].argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, chosen], 1)
        if len(logits) == count:
            return Answers(length, tokens, torch.cat(hidden, 1), torch.stack(logits, 1))
        output = model.model(chosen, past_key_values=output.past_key_values, use_cache=True)
        hidden.append(output.last_hidden_state)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_one_changed_early_token_changes_the_answer(measured: Measured) -> None:
    pairs = [
        (before, after)
        for old, new in zip(measured.plain, measured.changed, strict=True)
        for before, after in zip(old.continuations(), new.continuations(), strict=True)
    ]
    assert mean([before != after for before, after in pairs]) >= 0.95


def test_answers_of_different_prompts_differ(measured: Measured) -> None:
    answers = [tuple(answer) for group in measured.plain for answer in group.continuations()]
    assert len(set(answers)) == len(answers)


def test_the_accept_length_is_that_of_a_real_model(measured: Measured) -> None:
    lengths = measured.accept_lengths(3)
    assert 2.3 <= mean(lengths) <= 2.9
    assert min(lengths) >= 1.5
    assert max(lengths) <= 3.8
    assert max(lengths) - min(lengths) >= 0.3, "the prompts should differ in how well they are drafted"
    assert 1.6 <= mean(measured.accept_lengths(1)) <= 1.85


def test_a_head_that_gets_the_wrong_hidden_states_accepts_less(measured: Measured) -> None:
    group, drafts = measured.plain[0], measured.drafts[0]
    shifted = measured.head.draft(group.tokens, group.hidden.roll(1, 1), 3)
    assert mean(accept_lengths(group, shifted)) < 0.75 * mean(accept_lengths(group, drafts))


def test_answers_are_of_the_alphabet_and_use_all_of_it(measured: Measured) -> None:
    spoken = {
        token for group in [*measured.plain, measured.long] for answer in group.continuations() for token in answer
    }
    assert spoken <= set(ALPHABET)
    assert len(spoken) > 0.8 * len(ALPHABET)


def test_no_answer_ends_up_repeating_itself(measured: Measured) -> None:
    for answer in measured.long.continuations():
        assert longest_repetition(answer, max_period=32) < 64, bytes(answer).decode()


def longest_repetition(tokens: list[int], *, max_period: int) -> int:
    """Tokens of the longest stretch that only repeats what came one period before."""
    longest = 0
    for period in range(1, max_period + 1):
        run = 0
        for index in range(period, len(tokens)):
            run = run + 1 if tokens[index] == tokens[index - period] else 0
            longest = max(longest, run)
    return longest


def test_greedy_choices_are_far_from_ties(measured: Measured) -> None:
    """Prefill and decode round differently: it moves a margin by 6e-6 (rms) and 3e-5 (largest of 288) here."""
    logits = torch.cat([group.logits.flatten(0, 1) for group in [*measured.plain, *measured.changed, measured.long]])
    best, second = logits.topk(2, -1).values.unbind(-1)
    assert (best - second).min() > 1e-5
    assert ((best - second) < 1e-3).float().mean() < 0.003


def test_probabilities_are_neither_flat_nor_certain(measured: Measured) -> None:
    chosen = torch.cat([group.logits for group in measured.plain], 0).softmax(-1).amax(-1)
    assert 0.4 < chosen.median() < 0.95
    assert chosen.quantile(0.05) > 0.2
