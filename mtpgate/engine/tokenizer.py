"""A tokenizer in which a token is a byte: every text goes in and comes out, and the id of a byte is its value.

Byte-level BPE without a single merge, written as the files that Hugging Face's tokenizers read. The model built beside
it only ever answers with ``ALPHABET``, so its answers survive decoding and encoding token by token.
"""

from __future__ import annotations

import json
from typing import Any

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
"""Ids from 256 on, in this order."""

VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
EOS_ID, IM_START_ID, IM_END_ID, PAD_ID = range(256, VOCAB_SIZE)

ALPHABET = tuple(byte for byte in range(0x20, 0x7F) if chr(byte) not in '<"\\')
"""The tokens that the model answers with: printable ASCII. Without "<" no answer can spell a special token, and
without the quote and the backslash an answer reads the same in a JSON body."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_symbols() -> list[str]:
    """The printable stand-in of each byte value in byte-level BPE files, 256 of them.

    Visible Latin-1 characters stand for themselves, the others for the code points from 256 on, in order: the
    convention of every ByteLevel pre-tokenizer and decoder.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]


def tokenizer_files() -> dict[str, str]:
    """The tokenizer's files, name to text, the same on every machine."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    special: list[dict[str, Any]] = [
        {
            "id": 256 + index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, token in enumerate(SPECIAL_TOKENS)
    ]
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {symbol: byte for byte, symbol in enumerate(byte_symbols())},
            "merges": [],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {
            str(token["id"]): {key: token[key] for key in token if key != "id"} for token in special
        },
        "bos_token": None,
        "eos_token": "<|endoftext|>",
        "pad_token": "<|pad|>",
        "unk_token": None,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "chat_template": CHAT_TEMPLATE,
    }
    return {
        "tokenizer.json": json.dumps(tokenizer, ensure_ascii=True, indent=1),
        "tokenizer_config.json": json.dumps(config, ensure_ascii=True, indent=1),
    }
