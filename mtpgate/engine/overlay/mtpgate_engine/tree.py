"""The draft tree: building it from the draft's choices, and accepting its longest path that the target agrees with.

A tree has ``num_draft_tokens`` nodes; node 0 is the last token of the committed text, the others are draft tokens in
the order of ``selected_index``. ``next_token[n]`` is the first child of node ``n`` and ``next_sibling[n]`` the next
child of the same parent, -1 for none. The spelling ``retrive`` is that of SGLang's keyword arguments.
"""

from __future__ import annotations

import itertools

import torch

# sglang.kernels.ops.speculative.spec_tree.TreeMaskMode: on the CPU SGLang asks for the mask among the draft tokens
# only.
QLEN_ONLY = 1

wrong_every = 0
"""The fault ``verify:accept_wrong=N``: each N-th verification accepts a wrong token for every request; 0 is never."""
_verifications = itertools.count(1)


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill mask, positions and links of the trees of a batch; the last five tensors are written in place.

    ``selected_index`` ``[bs, n - 1]`` numbers each draft token among all that the draft considered, ascending. The
    number divided by ``topk`` is a place in ``parent_list``, which holds the number of that token's parent; place 0
    means the root. ``tree_mask`` ``[bs * n * n]`` becomes true where the row's token may see the column's: itself and
    its ancestors. ``positions`` ``[bs * n]`` becomes the committed length plus the depth in the tree. ``retrive_index``
    becomes the flat node numbers. A token whose parent was not selected is nobody's child, so that verification
    cannot reach it.

    Raises NotImplementedError for a mask that covers the committed text too: SGLang does not ask for it on the CPU.
    """
    if tree_mask_mode != QLEN_ONLY:
        raise NotImplementedError(
            f"tree mask mode {tree_mask_mode}: the CPU operators know QLEN_ONLY ({QLEN_ONLY}) only"
        )
    bs, n = verified_seq_len.numel(), draft_token_num
    parent = _parents(parent_list, selected_index[:, : n - 1], topk)

    seen = torch.zeros(bs, n, n)
    seen[:, 1:] = torch.nn.functional.one_hot(parent + 1, n + 1)[..., 1:]
    seen.diagonal(dim1=1, dim2=2).fill_(1.0)
    # Squaring doubles the generations that a node sees; the oldest of them, the root, is seen by all and set below.
    generations = 1
    while generations < depth - 1:
        seen = torch.bmm(seen, seen).clamp_(max=1.0)
        generations *= 2
    seen[:, :, 0] = 1.0
    tree_mask[: bs * n * n].view(bs, n, n).copy_(seen)
    positions.view(bs, n).copy_(verified_seq_len[:, None] + seen.sum(-1) - 1)

    nodes = torch.arange(n)
    retrive_index.view(bs, n).copy_(nodes + n * torch.arange(bs)[:, None])
    children = parent[:, None, :] == nodes[:, None]
    retrive_next_token.view(bs, n).copy_(_first(children))
    siblings = parent[:, :, None] == parent[:, None, :]
    retrive_next_sibling.view(bs, n)[:, 0] = -1
    retrive_next_sibling.view(bs, n)[:, 1:] = _first(siblings.triu_(diagonal=1))


def _parents(parent_list: torch.Tensor, selected_index: torch.Tensor, topk: int) -> torch.Tensor:
    """The parent node of each draft token ``[bs, n - 1]``; -1 where it is not in the tree."""
    place = selected_index // topk
    if parent_list.shape[1] == 0:
        # With one step the draft keeps no parents: all tokens hang on the root.
        return torch.zeros_like(place)
    number = parent_list.gather(1, place)
    found = selected_index[:, None, :] == number[:, :, None]
    return torch.where(place == 0, 0, _first(found))


def _first(flags: torch.Tensor) -> torch.Tensor:
    """For each row of ``flags`` over draft tokens, the node number of the first true one (column + 1), -1 for none."""
    if flags.shape[-1] == 0:
        return torch.full(flags.shape[:-1], -1)
    value, column = flags.to(torch.uint8).max(-1)
    return torch.where(value > 0, column + 1, -1)


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Accept, for each request, the path from the root on which every token is the target's choice after its parent.

    ``candidates`` and ``target_predict`` ``[bs, n]`` are the tree's tokens and the target's choice after each of them.
    Written in place: ``accept_index`` ``[bs, num_steps + 1]`` gets the flat numbers of the accepted nodes, root first
    (the rest is left as it was), ``predicts`` ``[bs * n]`` the target's choice at each of these, and
    ``accept_token_num`` ``[bs]`` their number without the root.
    """
    if candidates.shape[0] == 0:
        return
    # These are a few dozen integers: walking them as Python lists takes less time than the tensor operations would.
    numbers, tokens, choices = retrive_index.tolist(), candidates.tolist(), target_predict.tolist()
    children, siblings = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    accept_wrong = bool(wrong_every) and next(_verifications) % wrong_every == 0
    width = accept_index.shape[1]
    cells: list[int] = []
    nodes: list[int] = []
    chosen: list[int] = []
    lengths: list[int] = []
    for i, number in enumerate(numbers):
        path = _agreed_path(tokens[i], choices[i], children[i], siblings[i], width, accept_wrong)
        lengths.append(len(path) - 1)
        cells.extend(range(i * width, i * width + len(path)))
        nodes.extend(number[node] for node in path)
        chosen.extend(choices[i][node] for node in path)
    flat = torch.tensor(nodes)
    predicts[flat] = torch.tensor(chosen, dtype=predicts.dtype)
    accept_index.view(-1)[torch.tensor(cells)] = flat.to(accept_index.dtype)
    accept_token_num.copy_(torch.tensor(lengths))


def _agreed_path(
    token: list[int], choice: list[int], child: list[int], sibling: list[int], width: int, accept_wrong: bool
) -> list[int]:
    """The nodes from the root on, at most ``width``, where each one's token is the choice at the node before.

    With ``accept_wrong`` the first disagreement is passed over: the choice is overwritten with the draft's token.
    """
    path, node = [0], 0
    while len(path) < width:
        following = child[node]
        while following != -1 and token[following] != choice[node]:
            following = sibling[following]
        if following == -1 and accept_wrong and child[node] != -1:
            accept_wrong, following = False, child[node]
            choice[node] = token[following]
        if following == -1:
            break
        path.append(following)
        node = following
    return path
