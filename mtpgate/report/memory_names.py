"""What the figures of a memory budget are called on the page, in which order they stand, and in which colour."""

from __future__ import annotations

from collections.abc import Mapping

LABELS: Mapping[str, str] = {
    "before_load": "available before load",
    "weights": "weights",
    "draft_weights": "draft weights",
    "kv": "KV pool",
    "draft_kv": "draft KV pool",
    "state_cache": "state cache",
    "capture_prefill": "prefill graphs",
    "capture_target_decode": "decode graphs",
    "capture_target_verify": "verify graphs",
    "capture_draft_decode": "draft graphs",
    "capture_draft_extend": "draft-extend graphs",
    "other": "other",
    "unknown": "not told by the log",
    "left": "left",
    "wanted": "wanted",
}
"""Names of figures in the words of the page, in the order of its columns."""

UNFINISHED = " (unfinished)"
"""Added to the name of a capture that a failure cut."""


def label_of(name: str) -> str:
    """The name of a figure in words."""
    plain = plain_name(name)
    return LABELS.get(plain, plain.replace("_", " ")) + (UNFINISHED if plain != name else "")


def segment_class(name: str) -> str:
    """The colour class of a part; those of names that are not ours are grey."""
    plain = plain_name(name)
    return f"m-{plain}" if plain in LABELS else "m-other"


def position(name: str) -> tuple[int, str]:
    """The place of a column, as a key to sort by; names that are not ours come last."""
    plain = plain_name(name)
    return (list(LABELS).index(plain) if plain in LABELS else len(LABELS), name)


def plain_name(name: str) -> str:
    """``name`` without the mark of a capture that was cut."""
    return name.removesuffix(UNFINISHED)
