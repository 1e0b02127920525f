"""The two streams that a load can ask for: SGLang's native ``/generate`` and the OpenAI-compatible ``/v1/completions``.

Both take token ids, so the input is exact in both; ``/v1/chat/completions`` wraps its input in a template whose length
is the model's business, so it is not offered. An answer is read back from the events of its stream once the clock no
longer matters, and comes in one form, SGLang's: text, output ids and ``meta_info``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from mtpgate.load.sse import SEPARATOR, decode_event

Api = Literal["generate", "completions"]


@dataclass(frozen=True)
class Answer:
    """A whole answer. ``error`` is what the server said instead of one."""

    text: str = ""
    output_ids: tuple[int, ...] = ()
    meta: Mapping[str, object] = field(default_factory=dict)
    error: str | None = None


class Wire(Protocol):
    """How to ask, and how to read what comes back."""

    path: str
    cumulative: bool
    """Whether each event holds all of the answer so far."""

    def body(self, input_ids: Iterable[int], output_tokens: int) -> dict[str, object]:
        """A greedy, streamed request for exactly so many tokens."""

    def answer(self, events: bytes) -> Answer:
        """From what :meth:`mtpgate.load.sse.EventReader.events` kept.

        Raises:
            ValueError: an event cannot be decoded.
        """


class Generate:
    """SGLang's native stream: cumulative (``incremental_streaming_output`` off, its default)."""

    path = "/generate"
    cumulative = True

    def body(self, input_ids: Iterable[int], output_tokens: int) -> dict[str, object]:
        sampling = {"temperature": 0, "max_new_tokens": output_tokens, "ignore_eos": True}
        return {"input_ids": list(input_ids), "sampling_params": sampling, "stream": True}

    def answer(self, events: bytes) -> Answer:
        last = decode_event(events)
        if "error" in last:
            return Answer(error=str(last["error"]))
        return Answer(str(last.get("text") or ""), _integers(last.get("output_ids")), _mapping(last.get("meta_info")))


class Completions:
    """The OpenAI-compatible stream, with the extensions by which SGLang tells the tokens so far with each event.

    ``return_token_ids`` and ``return_spec_tokens_details`` are known to 0.5.23; servers that do not know them ignore
    them, and their answers have no ``output_ids`` and no accept length.
    """

    path = "/v1/completions"
    cumulative = False

    def body(self, input_ids: Iterable[int], output_tokens: int) -> dict[str, object]:
        return {
            "model": "default",
            "prompt": list(input_ids),
            "temperature": 0,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_token_ids": True,
            "return_spec_tokens_details": True,
        }

    def answer(self, events: bytes) -> Answer:
        text: list[str] = []
        ids: list[int] = []
        meta: dict[str, object] = {}
        for event in events.split(SEPARATOR):
            decoded = decode_event(event)
            if "error" in decoded:
                return Answer(error=str(decoded["error"]))
            for choice in _mappings(decoded.get("choices")):
                text.append(str(choice.get("text") or ""))
                ids += _integers(choice.get("token_ids"))
                if choice.get("finish_reason") is not None:
                    meta["finish_reason"] = {"type": choice["finish_reason"]}
            meta |= _usage(_mapping(decoded.get("usage")))
            meta |= _speculation(_mapping(decoded.get("sglext")))
        return Answer("".join(text), tuple(ids), meta)


WIRES: Mapping[Api, Wire] = {"generate": Generate(), "completions": Completions()}


def _usage(usage: Mapping[str, object]) -> dict[str, object]:
    found = {name: usage[name] for name in ("prompt_tokens", "completion_tokens") if usage.get(name) is not None}
    cached = _mapping(usage.get("prompt_tokens_details")).get("cached_tokens")
    return found | ({"cached_tokens": cached} if cached is not None else {})


def _speculation(sglext: Mapping[str, object]) -> dict[str, object]:
    details = sglext.get("spec_tokens_details")
    return dict(_mapping(details[0] if isinstance(details, list) and details else details))


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _mappings(value: object) -> list[Mapping[str, object]]:
    return [_mapping(item) for item in value] if isinstance(value, list) else []


def _integers(value: object) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, list) else ()
