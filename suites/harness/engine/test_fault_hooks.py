"""The hooks of the faults that break answers, each around a stand-in for the function of SGLang that it is put on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mtpgate.engine.overlay.mtpgate_engine import commit, fault_kv, fault_model, fault_output  # noqa: E402
from mtpgate.engine.overlay.mtpgate_engine.fault import ACTIONS, POINTS, Fault  # noqa: E402
from mtpgate.engine.overlay.mtpgate_engine.steps import EveryNth  # noqa: E402


def only_hook(fault: Fault) -> Any:
    ((_, hook),) = commit.hooks(fault)
    return hook


@pytest.mark.parametrize(
    "fault",
    [
        Fault(point, action, None if ACTIONS[action].value is None else 1.0)
        for point, actions in POINTS.items()
        for action in actions
        if action != "accept_wrong"  # A switch of the operator, not a hook.
    ],
    ids=str,
)
def test_every_fault_is_carried_out_somewhere_in_sglang(fault: Fault) -> None:
    assert all(target.startswith("sglang.srt.") and callable(hook) for target, hook in commit.hooks(fault))


def test_every_nth_begins_with_the_nth() -> None:
    steps = EveryNth(3)
    assert [steps.due() for _ in range(7)] == [False, False, True, False, False, True, False]


# Two draft tokens a request; the slots of a request are those of ten times its row.
def prepared(rows: list[int], lengths: list[int]) -> Any:
    slots = torch.tensor([[10 * row, 10 * row + 1] for row in rows]).flatten()
    batch = SimpleNamespace(
        batch_size=len(rows),
        req_pool_indices=torch.tensor(rows),
        seq_lens=torch.tensor(lengths),
        out_cache_loc=slots,
    )
    return batch, False


def test_mixed_slots_swap_the_first_slots_of_the_first_and_the_last_request() -> None:
    hook = only_hook(Fault("cache", "mix_slots", 1.0))
    healthy = prepared([1, 2, 3], [5, 5, 5])
    owned = healthy[0].out_cache_loc
    batch, _ = hook(lambda: healthy)
    assert batch.out_cache_loc.tolist() == [30, 11, 20, 21, 10, 31]
    assert owned.tolist() == [10, 11, 20, 21, 30, 31], "what the requests own is not touched"


def test_a_single_request_keeps_its_slots_and_counts_as_no_step() -> None:
    hook = only_hook(Fault("cache", "mix_slots", 2.0))

    def after(rows: list[int]) -> list[int]:
        return hook(lambda: prepared(rows, [5] * len(rows)))[0].out_cache_loc.tolist()

    assert [after([1, 2])[0], after([1])[0], after([1, 2])[0]] == [10, 10, 20]


class Verifying:
    """The two functions that a stale chain is hooked on, for requests that accept as told."""

    def __init__(self, every: int = 1, topk: int = 1) -> None:
        hooks = dict(fault_kv.stale_kv(every))
        self.prepare, self.verify, self.move = hooks.values()
        self.worker = SimpleNamespace(topk=topk, speculative_num_draft_tokens=2)

    def step(self, requests: dict[int, int], accepted: list[int]) -> list[int]:
        """The slots of one step; ``requests`` maps rows to lengths, ``accepted`` counts the bonus token."""
        batch, _ = self.prepare(lambda: prepared(list(requests), list(requests.values())))
        asked = SimpleNamespace(
            seq_lens=torch.tensor(list(requests.values())), req_pool_indices=torch.tensor(list(requests))
        )
        self.verify(lambda *_: SimpleNamespace(accept_lens=torch.tensor(accepted)), self.worker, asked)
        return batch.out_cache_loc.tolist()


def test_a_chain_loses_the_write_over_the_first_rejected_token() -> None:
    verifying = Verifying()
    assert verifying.step({1: 5, 2: 8}, [1, 2]) == [10, 11, 20, 21]
    # Request 1 had its draft rejected, request 2 had it accepted.
    assert verifying.step({1: 6, 2: 10}, [2, 2]) == [fault_kv.DUMMY_SLOT, 11, 20, 21]
    assert verifying.step({1: 8, 2: 12}, [2, 2]) == [10, 11, 20, 21]


def test_a_request_that_got_the_row_of_one_that_is_gone_keeps_its_slots() -> None:
    verifying = Verifying()
    verifying.step({1: 5}, [1])
    assert verifying.step({1: 3}, [2]) == [10, 11]


def test_only_each_nth_step_that_rejected_something_loses_a_write() -> None:
    verifying = Verifying(every=2)
    steps = [verifying.step({1: 5 + i}, [1])[0] for i in range(5)]
    assert steps == [10, 10, fault_kv.DUMMY_SLOT, 10, fault_kv.DUMMY_SLOT]


def test_a_tree_keeps_its_writes_and_is_not_compacted() -> None:
    verifying, moved = Verifying(topk=2), []
    verifying.step({1: 5}, [1])
    assert verifying.step({1: 6}, [1]) == [10, 11]
    verifying.move(lambda: moved.append("compacted"))
    assert not moved


def test_the_bonus_token_is_dropped_in_each_nth_step_that_accepted_a_draft() -> None:
    hook = only_hook(Fault("verify", "drop_bonus", 2.0))
    steps = [hook(lambda: [[1, 2, 3], [4]]), hook(lambda: [[5], [6]]), hook(lambda: [[1, 2, 3], [4]])]
    assert steps == [[[1, 2, 3], [4]], [[5], [6]], [[1, 2], [4]]]


class Counted:
    """A request, with SGLang's counters."""

    def __init__(self) -> None:
        self.spec_verify_ct = self.spec_num_correct_drafts = 0
        self.spec_correct_drafts_histogram: list[int] = []

    def update_spec_correct_drafts_histogram(self, correct: int) -> None:
        lacking = correct + 1 - len(self.spec_correct_drafts_histogram)
        self.spec_correct_drafts_histogram += [0] * lacking
        self.spec_correct_drafts_histogram[correct] += 1


def test_each_step_counts_one_correct_draft_too_many_and_answers_right() -> None:
    hook = only_hook(Fault("verify", "count_high"))
    running, finished = Counted(), Counted()
    result = SimpleNamespace(num_correct_drafts_per_req_cpu=[2, 1], num_correct_drafts=3)

    def resolve(*_: object) -> list[list[int]]:
        running.spec_verify_ct += 1
        running.spec_num_correct_drafts += 2
        running.update_spec_correct_drafts_histogram(2)
        return [[7, 8, 9], []]

    batch = SimpleNamespace(reqs=[running, finished])
    assert hook(resolve, None, result, batch) == [[7, 8, 9], []]
    assert (running.spec_verify_ct, running.spec_num_correct_drafts) == (1, 3)
    assert running.spec_correct_drafts_histogram == [0, 0, 0, 1]
    assert (finished.spec_num_correct_drafts, result.num_correct_drafts) == (0, 4)


class Stopping:
    """A request whose stop string is two tokens long and ends at the token ``END``."""

    END = 99

    def __init__(self) -> None:
        self.output_ids: list[int] = []
        self.finished_reason: object = None
        self.finished_len: int | None = None

    def _stop_match_tail_len(self, tokens: int) -> int:
        return min(2 + tokens, len(self.output_ids))

    def search(self, tokens: int) -> bool:
        if self.END not in self.output_ids[-self._stop_match_tail_len(tokens) :]:
            return False
        self.finished_reason, self.finished_len = "stop", len(self.output_ids)
        return True

    def step(self, *tokens: int) -> bool:
        self.output_ids += tokens
        return fault_output.unseen_string(Stopping.search, self, len(tokens))


def test_a_stop_string_in_a_step_of_several_tokens_is_overlooked_for_good() -> None:
    request = Stopping()
    assert [request.step(1), request.step(2, request.END), request.step(3), request.step(4), request.step(5)] == [
        False
    ] * 5
    assert (request.finished_reason, request.finished_len) == (None, None)
    assert request.step(request.END), "the next one, in a step of one token, is seen"


def test_a_stop_token_in_a_step_of_several_tokens_is_overlooked() -> None:
    def found(request: object, tokens: list[int]) -> bool:
        return 99 in tokens

    assert fault_output.unseen_token(found, None, [99])
    assert not fault_output.unseen_token(found, None, [1, 99])
    assert not fault_output.unseen_token(found, None, [1])


def forwarded(hook: Any, requests: int, *, verify: bool = True) -> list[bool]:
    """Whether each row of the logits, two a request, is NaN after one forward."""
    mode = SimpleNamespace(is_target_verify=lambda: verify)
    logits = torch.zeros(2 * requests, 5)
    output = SimpleNamespace(logits_output=SimpleNamespace(next_token_logits=logits))
    hook(lambda *_: output, None, SimpleNamespace(forward_mode=mode, batch_size=requests))
    return logits.isnan().all(-1).tolist()


def test_the_last_request_of_the_nth_batch_gets_nan_once() -> None:
    hook = only_hook(Fault("forward", "nan", 2.0))
    assert not any(forwarded(hook, 1) + forwarded(hook, 3, verify=False) + forwarded(hook, 3))
    assert forwarded(hook, 3) == [False] * 4 + [True] * 2
    assert not any(forwarded(hook, 3) + forwarded(hook, 3))


def test_the_draft_model_alone_gets_random_weights_and_always_the_same() -> None:
    hook = only_hook(Fault("draft_weights", "random"))

    def loaded(*, is_draft_worker: bool) -> Any:
        model = torch.nn.Linear(64, 64)
        torch.nn.init.ones_(model.weight)
        hook(lambda **_: SimpleNamespace(model=model), is_draft_worker=is_draft_worker)
        return model.weight

    assert (loaded(is_draft_worker=False) == 1).all()
    once = loaded(is_draft_worker=True)
    assert torch.equal(once, loaded(is_draft_worker=True))
    assert abs(once.std().item() - fault_model.SPREAD) < 0.002


def test_the_temperature_of_each_step_is_raised_once() -> None:
    hook = only_hook(Fault("sampling", "hot", 2.0))
    info = SimpleNamespace(temperatures=torch.tensor([[1.5], [1.0]]))

    def drawn_at() -> list[list[float]]:
        return hook(lambda _sampler, _logits, info: info.temperatures.tolist(), None, None, info)

    assert [drawn_at(), drawn_at()] == [[[3.0], [2.0]]] * 2


def test_random_weights_leave_the_global_random_state_alone() -> None:
    state = torch.get_rng_state()
    model = torch.nn.Linear(8, 8)
    torch.set_rng_state(state)
    fault_model.randomise(model)
    assert torch.equal(torch.get_rng_state(), state)
