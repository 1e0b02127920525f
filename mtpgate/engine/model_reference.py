"""A plain reference of the small model's draft head and of greedy chain drafting, for tests and for choosing gains.

No server, no cache, no batch scheduling: what SGLang's ``MiMoMTP`` and its EAGLE worker compute, written down once in
the most direct way, so that an engine can be compared with it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from mtpgate.engine.model_weights import HEAD


class DraftHead:
    """The head ``model.mtp_layers.0`` of a checkpoint folder with its shared embedding and lm_head, in float32.

    Shapes: B prompts, T positions, H hidden size, V tokens, S draft steps.
    """

    def __init__(self, directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        self.eps: float = config["rms_norm_eps"]
        self.head_dim = config["hidden_size"] // config["num_attention_heads"]
        self.inverse_frequency = config["rope_theta"] ** (
            -torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim
        )
        with safe_open(directory / "model.safetensors", framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(HEAD)]  # noqa: SIM118 (not a mapping)
            self.weights: dict[str, Tensor] = {name.removeprefix(HEAD): file.get_tensor(name) for name in names}
            self.embed: Tensor = file.get_tensor("model.embed_tokens.weight")
            self.lm_head: Tensor = file.get_tensor("lm_head.weight")

    def draft(self, tokens: Tensor, hidden: Tensor, num_steps: int) -> Tensor:
        """The chain of greedy draft tokens from every position at once: int64 [B, T, num_steps].

        ``tokens`` [B, T + 1] are the target's, ``hidden`` [B, T, H] its states after the final norm. Row t drafts what
        follows ``tokens[:, t + 1]``, knowing ``hidden`` up to t. Later steps get the head's own state and draft token,
        and see the head's keys and values of the true text up to t and of their own chain.
        """
        length = hidden.shape[1]
        positions = torch.arange(length)
        past = torch.ones(length, length, dtype=torch.bool).tril()
        current, state = tokens[:, 1:], hidden
        keys: list[Tensor] = []
        values: list[Tensor] = []
        drafts: list[Tensor] = []
        for step in range(num_steps):
            stream = self._input(current, state, positions + step)
            query, key, value = self._project(stream, positions + step)
            keys.append(key)
            values.append(value)
            stream = stream + F.linear(_attend(query, keys, values, past), self.weights["self_attn.o_proj.weight"])
            state = self._norm("final_layernorm", self._mlp(stream))
            current = F.linear(state, self.lm_head).argmax(-1)
            drafts.append(current)
        return torch.stack(drafts, -1)

    def _input(self, tokens: Tensor, hidden: Tensor, positions: Tensor) -> Tensor:
        # As in SGLang: the head at position 0 does not see the token.
        embedding = self.embed[tokens] * (positions != 0)[:, None]
        joined = torch.cat([self._norm("hidden_layernorm", hidden), self._norm("token_layernorm", embedding)], -1)
        return F.linear(joined, self.weights["input_proj.weight"])

    def _project(self, stream: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query [B, heads, T, D], key and value [B, kv heads, T, D], rotated to their positions."""
        normed = self._norm("input_layernorm", stream)
        angles = torch.outer(positions.float(), self.inverse_frequency).repeat(1, 2)

        def heads(part: str, *, rotate: bool) -> Tensor:
            flat = F.linear(
                normed, self.weights[f"self_attn.{part}_proj.weight"], self.weights[f"self_attn.{part}_proj.bias"]
            )
            split = flat.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            if not rotate:
                return split
            low, high = split.chunk(2, -1)
            return split * angles.cos() + torch.cat([-high, low], -1) * angles.sin()

        return heads("q", rotate=True), heads("k", rotate=True), heads("v", rotate=False)

    def _mlp(self, stream: Tensor) -> Tensor:
        normed = self._norm("post_attention_layernorm", stream)
        gate = F.silu(F.linear(normed, self.weights["mlp.gate_proj.weight"]))
        up = F.linear(normed, self.weights["mlp.up_proj.weight"])
        return stream + F.linear(gate * up, self.weights["mlp.down_proj.weight"])

    def _norm(self, name: str, vector: Tensor) -> Tensor:
        scale = torch.rsqrt(vector.pow(2).mean(-1, keepdim=True) + self.eps)
        return vector * scale * self.weights[f"{name}.weight"]


def _attend(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], past: Tensor) -> Tensor:
    """Attention of each row to the true text up to it (the first keys) and to its own chain (all other keys)."""
    group = query.shape[1] // keys[0].shape[1]
    keys = [key.repeat_interleave(group, 1) for key in keys]
    values = [value.repeat_interleave(group, 1) for value in values]
    scores = (query @ keys[0].transpose(-1, -2)).masked_fill(~past, float("-inf"))
    own = [(query * key).sum(-1, keepdim=True) for key in keys[1:]]
    weights = torch.softmax(torch.cat([scores, *own], -1) / query.shape[-1] ** 0.5, -1)
    length = past.shape[0]
    mixed = weights[..., :length] @ values[0]
    for index, value in enumerate(values[1:]):
        mixed = mixed + weights[..., length + index, None] * value
    return mixed.transpose(1, 2).flatten(2)


def accept_length(tokens: Sequence[int], drafts: Sequence[Sequence[int]], prompt_length: int) -> float:
    """Completion tokens for each verify step, the bonus token included, as SGLang's ``spec_accept_length`` counts.

    ``drafts[t]`` is the chain that would follow ``tokens[t + 1]``. The text is greedy, so a draft token is accepted
    where it is the text's own; steps that would run over its end are left out.
    """
    num_steps = len(drafts[0])
    position, steps, produced = prompt_length - 1, 0, 0
    while position + 2 + num_steps < len(tokens):
        accepted = 0
        while accepted < num_steps and drafts[position][accepted] == tokens[position + 2 + accepted]:
            accepted += 1
        position += accepted + 1
        produced += accepted + 1
        steps += 1
    if steps == 0:
        raise ValueError(f"{len(tokens) - prompt_length} completion tokens are too few for one verify step")
    return produced / steps
