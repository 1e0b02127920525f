"""The draft tree: built as the draft numbers its tokens, accepted as far as the target alone would have written it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from mtpgate.engine.overlay.mtpgate_engine import tree

SHAPES = pytest.mark.parametrize(
    ("num_steps", "topk", "n"),
    [(1, 1, 2), (3, 1, 4), (5, 1, 6), (1, 4, 4), (3, 2, 6), (3, 4, 8), (4, 2, 3), (2, 4, 16)],
    ids=str,
)
SEEDS = pytest.mark.parametrize("seed", range(4))


class Drafts:
    """A batch of drafts, with the numbering of EAGLE's draft steps, and the tree nodes that were selected of each.

    Step 0 considers ``topk`` tokens, numbers ``0..topk-1``. Each later step expands ``topk`` of the last step's tokens
    by ``topk`` each, numbered on. ``parent_list`` holds -1 for the root and then, step by step, the numbers that were
    expanded.
    """

    def __init__(self, bs: int, num_steps: int, topk: int, n: int, seed: int) -> None:
        self.bs, self.num_steps, self.topk, self.n = bs, num_steps, topk, n
        self.generator = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(1, 100, (bs,), generator=self.generator)
        self.parent_lists: list[list[int]] = []
        self.selected: list[list[int]] = []
        self.parents: list[list[int]] = []
        """For each request the parent node of each node; -1 for the root."""
        for _ in range(bs):
            self._draw()

    def _draw(self) -> None:
        parent_of: dict[int, int] = dict.fromkeys(range(self.topk), -1)
        parent_list = [-1]
        frontier = list(range(self.topk))
        for _ in range(1, self.num_steps):
            parent_list += frontier
            considered = []
            for parent in frontier:
                children = range(len(parent_of), len(parent_of) + self.topk)
                considered += children
                parent_of.update(dict.fromkeys(children, parent))
            order = torch.randperm(len(considered), generator=self.generator)[: self.topk]
            frontier = [considered[i] for i in order.tolist()]
        # As by falling scores, a token is selected only after its parent.
        selected: list[int] = []
        while len(selected) < self.n - 1:
            able = [k for k, p in parent_of.items() if k not in selected and (p == -1 or p in selected)]
            selected.append(able[int(torch.randint(len(able), (1,), generator=self.generator))])
        selected.sort()
        node_of = {number: node for node, number in enumerate(selected, start=1)} | {-1: 0}
        self.parent_lists.append(parent_list if self.num_steps > 1 else [])
        self.selected.append(selected)
        self.parents.append([-1, *(node_of[parent_of[number]] for number in selected)])

    def ancestors(self, request: int, node: int) -> list[int]:
        """The node itself and those on its way to the root."""
        path = [node]
        while self.parents[request][path[-1]] != -1:
            path.append(self.parents[request][path[-1]])
        return path

    def children(self, request: int, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents[request]) if parent == node]


@dataclass
class Built:
    mask: torch.Tensor
    positions: torch.Tensor
    index: torch.Tensor
    next_token: torch.Tensor
    next_sibling: torch.Tensor


def build(drafts: Drafts) -> Built:
    bs, n = drafts.bs, drafts.n
    # Dirty buffers: the operator must not count on what they held.
    links = torch.full((3, bs, n), 77)
    mask, positions = torch.ones(bs * n * n, dtype=torch.bool), torch.full((bs * n,), 77)
    tree.build_tree_kernel_efficient_cpu(
        torch.tensor(drafts.parent_lists, dtype=torch.int64).view(bs, -1), torch.tensor(drafts.selected),
        drafts.lengths, mask, positions, links[0], links[1], links[2], drafts.topk, drafts.num_steps, n, tree.QLEN_ONLY,
    )  # fmt: skip
    return Built(mask.view(bs, n, n), positions.view(bs, n), links[0], links[1], links[2])


@SEEDS
@SHAPES
def test_a_token_sees_itself_and_its_ancestors(num_steps: int, topk: int, n: int, seed: int) -> None:
    drafts = Drafts(3, num_steps, topk, n, seed)
    mask = build(drafts).mask
    for request in range(drafts.bs):
        for node in range(n):
            assert sorted(drafts.ancestors(request, node)) == mask[request, node].nonzero().flatten().tolist()


@SEEDS
@SHAPES
def test_a_position_is_the_committed_length_plus_the_depth(num_steps: int, topk: int, n: int, seed: int) -> None:
    drafts = Drafts(3, num_steps, topk, n, seed)
    depths = [[len(drafts.ancestors(request, node)) - 1 for node in range(n)] for request in range(drafts.bs)]
    assert torch.equal(build(drafts).positions, drafts.lengths[:, None] + torch.tensor(depths))


@SEEDS
@SHAPES
def test_links_lead_from_a_node_to_all_its_children(num_steps: int, topk: int, n: int, seed: int) -> None:
    drafts = Drafts(3, num_steps, topk, n, seed)
    built = build(drafts)
    assert built.index.flatten().tolist() == list(range(drafts.bs * n))
    for request in range(drafts.bs):
        for node in range(n):
            reached, following = [], int(built.next_token[request, node])
            while following != -1 and len(reached) < n:
                reached.append(following)
                following = int(built.next_sibling[request, following])
            assert reached == drafts.children(request, node)


def test_a_token_whose_parent_was_not_selected_is_nobodys_child() -> None:
    # topk 2, two steps: number 2 is a child of number 0, which is not in the tree; 1 and 5 are a chain.
    index = torch.full((3, 1, 4), 77)
    mask, positions = torch.ones(16, dtype=torch.bool), torch.empty(4, dtype=torch.int64)
    tree.build_tree_kernel_efficient_cpu(
        torch.tensor([[-1, 0, 1]]), torch.tensor([[1, 2, 5]]), torch.tensor([9]), mask, positions, index[0], index[1],
        index[2], 2, 2, 4, tree.QLEN_ONLY,
    )  # fmt: skip
    assert index[1].tolist() == [[1, 3, -1, -1]]


def test_a_mask_over_the_committed_text_is_refused() -> None:
    none = torch.empty(0)
    with pytest.raises(NotImplementedError, match="mask mode 0"):
        tree.build_tree_kernel_efficient_cpu(none, none, none, none, none, none, none, none, 1, 1, 2, 0)


@dataclass
class Verified:
    tokens: list[list[int]]
    """What each request gets: the target's choice at each accepted node; the last is the bonus token."""
    index: torch.Tensor
    counts: list[int]


def verify(drafts: Drafts, candidates: torch.Tensor, target: torch.Tensor, *, room: int | None = None) -> Verified:
    """Verification with space for ``room`` accepted nodes per request, by default one for each step and the root."""
    built = build(drafts)
    predicts = torch.full((drafts.bs * drafts.n,), -7, dtype=torch.int32)
    index = torch.full((drafts.bs, room or drafts.num_steps + 1), -1, dtype=torch.int32)
    counts = torch.empty(drafts.bs, dtype=torch.int32)
    tree.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=index,
        accept_token_num=counts,
        candidates=candidates,
        retrive_index=built.index,
        retrive_next_token=built.next_token,
        retrive_next_sibling=built.next_sibling,
        target_predict=target,
    )
    return Verified([predicts[row[row >= 0].long()].tolist() for row in index], index, counts.tolist())


def guesses(drafts: Drafts) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidate tokens, siblings all different, and the target's choice after each, often that of a child."""
    candidates, target = torch.zeros(2, drafts.bs, drafts.n, dtype=torch.int64)
    for request in range(drafts.bs):
        for node in range(drafts.n):
            children = drafts.children(request, node)
            tokens = torch.randperm(len(children) + 2, generator=drafts.generator)
            candidates[request, children] = tokens[: len(children)]
            # Of the tokens drawn, one or two belong to no child: there the path ends.
            target[request, node] = tokens[int(torch.randint(len(tokens), (1,), generator=drafts.generator))]
            if children and torch.rand(1, generator=drafts.generator) < 0.5:
                target[request, node] = candidates[request, children[-1]]
    return candidates, target


@SEEDS
@SHAPES
def test_what_is_accepted_is_what_the_target_alone_would_write(num_steps: int, topk: int, n: int, seed: int) -> None:
    drafts = Drafts(6, num_steps, topk, n, seed)
    candidates, target = guesses(drafts)
    verified = verify(drafts, candidates, target)
    for request in range(drafts.bs):
        node, path, written = 0, [0], [int(target[request, 0])]
        while len(path) <= num_steps:
            agreed = [c for c in drafts.children(request, node) if candidates[request, c] == target[request, node]]
            if not agreed:
                break
            node = agreed[0]
            path.append(node)
            written.append(int(target[request, node]))
        assert verified.tokens[request] == written
        assert verified.counts[request] == len(path) - 1
        flat = [request * n + node for node in path]
        assert verified.index[request].tolist() == flat + [-1] * (num_steps + 1 - len(flat))


@pytest.mark.parametrize("agree", [True, False], ids=["all agreed", "none agreed"])
def test_a_chain_is_accepted_whole_or_gives_one_token(agree: bool) -> None:
    drafts = Drafts(2, 3, 1, 4, seed=0)
    candidates = torch.tensor([[5, 6, 7, 8]]).expand(2, 4)
    target = torch.tensor([[6, 7, 8, 9] if agree else [16, 17, 18, 19]]).expand(2, 4)
    assert verify(drafts, candidates, target).tokens == [[6, 7, 8, 9] if agree else [16]] * 2


def test_no_more_is_accepted_than_there_is_room_for() -> None:
    drafts = Drafts(2, 3, 1, 4, seed=0)
    candidates, target = torch.tensor([[5, 6, 7, 8]] * 2), torch.tensor([[6, 7, 8, 9]] * 2)
    assert verify(drafts, candidates, target, room=2).tokens == [[6, 7]] * 2


def test_the_fault_accepts_one_token_that_the_target_did_not_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    drafts = Drafts(2, 3, 1, 4, seed=0)
    candidates = torch.tensor([[5, 6, 7, 8], [5, 60, 7, 8]])
    target = torch.tensor([[6, 17, 18, 9], [6, 7, 8, 9]])
    sound = verify(drafts, candidates, target)
    assert sound.tokens == [[6, 17], [6]]
    monkeypatch.setattr(tree, "wrong_every", 1)
    broken = verify(drafts, candidates, target)
    assert broken.tokens == [[6, 7, 18], [60, 7, 8, 9]]


def test_the_fault_strikes_in_each_nth_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    drafts = Drafts(1, 1, 1, 2, seed=0)
    candidates, target = torch.tensor([[5, 6]]), torch.tensor([[7, 8]])
    monkeypatch.setattr(tree, "wrong_every", 3)
    wrong = [verify(drafts, candidates, target).tokens != [[7]] for _ in range(9)]
    assert sum(wrong) == 3


def test_an_empty_batch_is_no_error() -> None:
    none, rows = torch.empty(0, dtype=torch.int32), torch.empty(0, 4, dtype=torch.int64)
    tree.verify_tree_greedy_cpu(none, rows, none, rows, rows, rows, rows, rows)
