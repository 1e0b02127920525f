"""The weights of the small MTP model: a real Qwen2 transformer and its draft head, built rather than trained.

The residual stream has four parts, each with dimensions of its own:

* the *token part*, one dimension for each token: the mark 1.0 of the token that was read. No layer writes to it.
* one *constant* dimension, which steadies the length of the stream and so keeps RMSNorm close to a fixed scale.
* the *silent part*, which all layers read and write, but lm_head does not read.
* the *spoken part*, which all layers read and write, and lm_head reads.

lm_head gives the successor of the current token ``successor_logit`` and adds random projections of the spoken part.
The first layer recalls the last tokens into the spoken part by attention at fixed distances, and averages all tokens
into the silent part. The later layers are random: they mix the silent part with a gain so high that one changed token
changes everything after a few layers, and let a little of it into the spoken part. Hence

* the greedy answer depends on every earlier token, through the keys and values of every layer;
* the draft head, a copy of the first layer under the same lm_head, knows all of a logit but what the later layers
  say. ``surprise`` sets how much that is, and with it the accept length; nothing is added for its own sake;
* the head gets the token before the current one from the target's hidden state and those before it from its own keys
  and values, so an engine that hands over the wrong hidden states or spoils the draft's cache accepts less.

Random numbers are raw PCG64 output scaled by powers of two, and nothing here calls BLAS or LAPACK: the same recipe
gives the same bytes on every machine.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
import numpy.typing as npt

from mtpgate.engine.model_recipe import Recipe
from mtpgate.engine.tokenizer import ALPHABET, VOCAB_SIZE

Array = npt.NDArray[np.float32]

CONSTANT = 2.0
"""The constant dimension, in token marks: large enough to steady the length of the stream."""

FORBIDDEN_LOGIT = -40.0
"""What tokens outside the alphabet get; the alphabet's best is always above zero."""

RECALL_FREQUENCIES = 8
RECALL_SCORE = 50.0
"""The attention score at the recalled distance. With the eight fastest rotary frequencies its neighbours get 43, so
a thousandth of the weight."""

SILENT_LENGTH = 0.75
"""Measured length of the silent part; only used to normalise the MLPs."""

HEAD = "model.mtp_layers.0."


def build_weights(recipe: Recipe) -> dict[str, Array]:
    """All tensors of the checkpoint, float32, by their names in the MiMo layout (linear weights are [out, in])."""
    return _Builder(recipe).build()


class _Builder:
    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.token = slice(0, VOCAB_SIZE)
        self.silent = slice(VOCAB_SIZE + 1, VOCAB_SIZE + 1 + recipe.silent_size)
        self.spoken = slice(self.silent.stop, recipe.hidden_size)
        # Turns a length on the stream into the same length after RMSNorm, which gives every vector sqrt(hidden_size).
        self.unit = recipe.typical_norm / math.sqrt(recipe.hidden_size)

    def build(self) -> dict[str, Array]:
        recipe = self.recipe
        embed = self._zeros(VOCAB_SIZE, recipe.hidden_size)
        embed[np.arange(VOCAB_SIZE), np.arange(VOCAB_SIZE)] = 1.0
        embed[:, VOCAB_SIZE] = CONSTANT
        weights = {
            "model.embed_tokens.weight": embed,
            "model.norm.weight": self._ones(),
            "lm_head.weight": self._lm_head(),
        }
        first = self._first_layer()
        for index in range(recipe.num_hidden_layers):
            layer = first if index == 0 else self._later_layer(index)
            weights |= {f"model.layers.{index}.{name}": tensor for name, tensor in layer.items()}
        return weights | {HEAD + name: tensor for name, tensor in self._draft_head(first).items()}

    def _lm_head(self) -> Array:
        recipe, alphabet = self.recipe, list(ALPHABET)
        weight = self._zeros(VOCAB_SIZE, recipe.hidden_size)
        weight[:, VOCAB_SIZE] = FORBIDDEN_LOGIT / CONSTANT * self.unit
        weight[alphabet, VOCAB_SIZE] = 0.0
        for token in range(VOCAB_SIZE):
            # Tokens that are never answered need a successor too: prompts contain them.
            place = alphabet.index(token) + 1 if token in ALPHABET else token
            weight[alphabet[place % len(alphabet)], token] = recipe.successor_logit * self.unit
        weight[alphabet, self.spoken] = self._random(
            "lm_head", len(alphabet), recipe.spoken_size, std=recipe.context_logit * self.unit
        )
        return weight

    def _first_layer(self) -> dict[str, Array]:
        recipe, dim = self.recipe, self.recipe.head_dim
        layer = self._attention("layers.0", focus=recipe.first_focus, silent_gain=0.0, spoken_gain=0.0)
        layer |= self._mlp("layers.0", silent_gain=0.0, silent=0.0, spoken=recipe.first_mlp)
        output = self._zeros(recipe.hidden_size, recipe.hidden_size)
        self._write(output, "layers.0.o_proj", silent=recipe.shared, spoken=0.0)
        layer["self_attn.k_proj.weight"][:dim] = 0.0
        layer["self_attn.k_proj.bias"][:dim] = self._recall_key(distance=0)
        layer["self_attn.v_proj.bias"][:dim] = 0.0
        for head, amplitude in enumerate(recipe.recall):
            columns = slice(head * dim, (head + 1) * dim)
            layer["self_attn.q_proj.weight"][columns] = 0.0
            layer["self_attn.q_proj.bias"][columns] = self._recall_key(distance=head + 1)
            output[:, columns] = 0.0
            if head == 0:
                # The plain copy lets the draft head write the same code without multiplying two matrices here.
                output[self.spoken.start + np.arange(dim), np.arange(dim)] = amplitude / math.sqrt(dim)
            else:
                output[self.spoken, columns] = self._random(
                    f"recall.{head}", recipe.spoken_size, dim, std=amplitude / math.sqrt(recipe.spoken_size * dim)
                )
        layer["self_attn.o_proj.weight"] = output
        return layer

    def _recall_key(self, distance: int) -> Array:
        """A query bias that, under rotary positions, matches the key bias of distance 0 that many tokens earlier."""
        half, dim = self.recipe.head_dim // 2, self.recipe.head_dim
        amplitude = math.sqrt(RECALL_SCORE * math.sqrt(dim) / RECALL_FREQUENCIES)
        vector = np.zeros(dim, np.float32)
        for index in range(RECALL_FREQUENCIES):
            angle = -distance * self.recipe.rope_theta ** (-2.0 * index / dim)
            vector[index], vector[half + index] = amplitude * math.cos(angle), amplitude * math.sin(angle)
        return vector

    def _later_layer(self, index: int) -> dict[str, Array]:
        recipe, name = self.recipe, f"layers.{index}"
        gain = recipe.entry_gain if index == 1 else recipe.deep_gain
        layer = self._attention(name, focus=recipe.focus, silent_gain=gain, spoken_gain=recipe.spoken_gain)
        layer |= self._mlp(name, silent_gain=gain, silent=recipe.stir, spoken=recipe.surprise)
        output = self._zeros(recipe.hidden_size, recipe.hidden_size)
        self._write(output, f"{name}.o_proj", silent=recipe.stir, spoken=recipe.surprise)
        layer["self_attn.o_proj.weight"] = output
        return layer

    def _draft_head(self, first: dict[str, Array]) -> dict[str, Array]:
        recipe, size, dim = self.recipe, self.recipe.hidden_size, self.recipe.head_dim
        project = self._zeros(size, 2 * size)  # [hidden state | embedding of the next token] -> stream
        marks = np.arange(VOCAB_SIZE + 1)
        project[marks, size + marks] = math.sqrt((1.0 + CONSTANT**2) / size)
        code = first["self_attn.v_proj.weight"][:dim, self.token] * math.sqrt(size / (1.0 + CONSTANT**2))
        project[self.spoken.start : self.spoken.start + dim, self.token] = (
            code * (recipe.recall[0] / math.sqrt(dim)) * self.unit
        )
        block = {name: tensor.copy() for name, tensor in first.items()}
        block["self_attn.o_proj.weight"][:, :dim] = 0.0  # the last token comes from the hidden state instead
        norms = {name: self._ones() for name in ("token_layernorm", "hidden_layernorm", "final_layernorm")}
        return block | {"input_proj.weight": project} | {f"{name}.weight": norm for name, norm in norms.items()}

    def _attention(self, name: str, *, focus: float, silent_gain: float, spoken_gain: float) -> dict[str, Array]:
        """Query, key and value projections; scores have the standard deviation ``focus``."""
        recipe = self.recipe
        values = recipe.num_key_value_heads * recipe.head_dim
        layer: dict[str, Array] = {}
        for part, rows, gain in (("q", recipe.hidden_size, focus), ("k", values, 1.0), ("v", values, 1.0)):
            weight = self._read(f"{name}.{part}_proj", rows, silent_gain=silent_gain, spoken_gain=spoken_gain)
            layer[f"self_attn.{part}_proj.weight"] = weight * np.float32(gain)
            layer[f"self_attn.{part}_proj.bias"] = self._random(f"{name}.{part}_proj.bias", rows, std=0.1)
        return layer

    def _mlp(self, name: str, *, silent_gain: float, silent: float, spoken: float) -> dict[str, Array]:
        recipe = self.recipe
        gate, up = (
            self._read(f"{name}.{part}", recipe.intermediate_size, silent_gain=silent_gain,
                       spoken_gain=recipe.spoken_gain)
            for part in ("gate_proj", "up_proj")
        )  # fmt: skip
        down = self._zeros(recipe.hidden_size, recipe.intermediate_size)
        # rms of silu(a) * b for independent normal a, b of variance v is about 0.65 v from v = 1 to 40.
        rms = 0.65 * (1.0 + (silent_gain * SILENT_LENGTH) ** 2)
        self._write(down, f"{name}.down_proj", silent=silent / rms, spoken=spoken / rms)
        return {
            "mlp.gate_proj.weight": gate,
            "mlp.up_proj.weight": up,
            "mlp.down_proj.weight": down,
            "input_layernorm.weight": self._ones(),
            "post_attention_layernorm.weight": self._ones(),
        }

    def _read(self, name: str, rows: int, *, silent_gain: float, spoken_gain: float) -> Array:
        """[rows, hidden_size]: each row's output has variance 1 from the token, and gain**2 from a part of length 1."""
        weight = self._random(name, rows, self.recipe.hidden_size, std=self.unit)
        weight[:, VOCAB_SIZE] = 0.0
        weight[:, self.silent] *= np.float32(silent_gain)
        weight[:, self.spoken] *= np.float32(spoken_gain)
        return weight

    def _write(self, weight: Array, name: str, *, silent: float, spoken: float) -> None:
        """Fill a [hidden_size, inputs] matrix: inputs of variance 1 give the two parts these lengths."""
        for part, rows, length in (("silent", self.silent, silent), ("spoken", self.spoken, spoken)):
            shape = weight[rows].shape
            weight[rows] = self._random(f"{name}.{part}", *shape, std=length / math.sqrt(shape[0] * shape[1]))

    def _random(self, name: str, *shape: int, std: float) -> Array:
        """Uniform numbers of mean 0 and this standard deviation, from a stream of the tensor's own."""
        count = math.prod(shape)
        stream = np.random.PCG64(np.random.SeedSequence([self.recipe.seed, zlib.crc32(name.encode())]))
        words = stream.random_raw((count + 1) // 2).astype("<u8").view("<u4")[:count]
        centred = (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24) - np.float32(0.5)
        numbers: Array = (centred * np.float32(std * math.sqrt(12.0))).reshape(shape)
        return numbers

    def _ones(self) -> Array:
        return np.ones(self.recipe.hidden_size, np.float32)

    @staticmethod
    def _zeros(*shape: int) -> Array:
        return np.zeros(shape, np.float32)
