"""What the small MTP model is made of: sizes, gains and the seed, as one frozen value with a stable digest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from mtpgate.engine.tokenizer import VOCAB_SIZE

WEIGHTS_VERSION = 1
"""Raised by hand when the code turns the same recipe into other bytes; it is part of the recipe's digest."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides the bytes of a checkpoint; ``model_weights`` explains what the gains act on.

    Amplitudes (``recall``, ``shared``, ...) are lengths on the residual stream in units of a token's own mark.
    Logits are in nats at the typical length of the residual stream.
    """

    seed: int = 1
    hidden_size: int = 512
    num_hidden_layers: int = 12
    intermediate_size: int = 4096
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0

    typical_norm: float = 2.8
    """Length of the residual stream after the last layer; only fixes the unit of the logits."""
    successor_logit: float = 10.0
    """What the successor of the current token gets; the text runs along the alphabet where nothing beats it."""
    context_logit: float = 3.5
    """Standard deviation of a token's logit for each unit of length of the spoken part."""
    recall: tuple[float, ...] = (0.8, 0.5, 0.4)
    """Amplitudes with which the last, second and third last tokens speak: known to the draft head as well."""
    first_mlp: float = 0.3
    """Amplitude of the first layer's MLP, in the spoken part: known to the draft head as well."""
    surprise: float = 0.04
    """Amplitude of each attention and MLP after the first layer in the spoken part: what the head cannot know.
    This is what sets the accept length."""
    shared: float = 1.2
    """Amplitude of the first layer's nearly uniform attention over all tokens, in the silent part."""
    stir: float = 0.1
    """Amplitude of each later attention and MLP in the silent part."""
    entry_gain: float = 8.0
    """How strongly the second layer reads the silent part: high, because one token of many moves it little."""
    deep_gain: float = 2.0
    """The same for the layers after it; together they decide how far one changed token spreads."""
    spoken_gain: float = 0.7
    """How strongly layers read the spoken part."""
    focus: float = 2.0
    """Standard deviation of attention scores after the first layer (0: uniform attention)."""
    first_focus: float = 0.3
    """The same for the first layer's attention over all tokens."""

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads or self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("hidden_size, num_attention_heads and num_key_value_heads must divide one another")
        if self.spoken_size < self.head_dim:
            raise ValueError(
                f"hidden_size {self.hidden_size} leaves {self.spoken_size} spoken dimensions, "
                f"fewer than one attention head of {self.head_dim}"
            )
        if len(self.recall) > self.num_attention_heads // self.num_key_value_heads:
            raise ValueError("each recalled token needs a query head of the first key-value head")

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def silent_size(self) -> int:
        """Dimensions of the residual stream that only layers read."""
        return (self.hidden_size - VOCAB_SIZE - 1) * 3 // 8

    @property
    def spoken_size(self) -> int:
        """Dimensions of the residual stream that lm_head reads beside the token's mark."""
        return self.hidden_size - VOCAB_SIZE - 1 - self.silent_size

    @property
    def digest(self) -> str:
        """sha256 (hex) over the fields and ``WEIGHTS_VERSION``: two equal digests mean two equal checkpoints."""
        text = json.dumps({"version": WEIGHTS_VERSION, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


DEFAULT = Recipe()
"""Measured with ``suites/harness/engine/test_model_answers.py`` and, for accept lengths, on the server too (greedy):

* accept length 2.7 at num_steps 3 (2.1 to 3.3 over 60 prompts) and 1.7 at num_steps 1; ``surprise`` 0.001 gives 3.6,
  0.05 gives 2.5. With the hidden states of the token before: 1.4.
* one token of the first four changed: 30 of 30 answers differ, the latest from the 13th token on.
* top-2 margin of the logits: median 1.7, 1 % below 0.03, 0.05 % below 0.001; rounding moves it by 6e-6 (rms).
* probability of the chosen token: median 0.74, 5 % below 0.33.
"""
