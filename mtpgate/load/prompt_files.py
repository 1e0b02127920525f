"""A team's own prompts for parity and acceptance: JSON lines, or a ShareGPT file.

Read are, one object a line or all in one list: ``{"text": ...}`` or ``{"prompt": ...}``, each with optional ``id`` and
``kind``; ``{"messages": [{"role": ..., "content": ...}]}``; and ShareGPT's ``{"conversations": [{"from": "human",
"value": ...}]}``. Of a conversation all turns up to the last one of the person are the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mtpgate.errors import UsageError
from mtpgate.load.prompts import Prompt

MOST_PROMPTS = 256
"""Each is asked several times of every cell."""
EXPECTED = 'expected {"text": ...}, {"prompt": ...}, {"messages": [...]} or {"conversations": [...]}'
PERSON = ("user", "human")


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of ``path``. UsageError names file, line and what was expected."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--prompts {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompts {path}: not UTF-8: {error}") from error
    prompts = [_prompt(path, number, entry) for number, entry in _entries(path, text)]
    if not prompts:
        raise UsageError(f"--prompts {path}: no prompt in it; {EXPECTED}, one a line")
    if len(prompts) > MOST_PROMPTS:
        raise UsageError(f"--prompts {path}: {len(prompts)} prompts, at most {MOST_PROMPTS}; keep those that matter")
    ids = [prompt.id for prompt in prompts]
    twice = next((name for name in ids if ids.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--prompts {path}: two prompts have the id {twice!r}")
    return tuple(prompts)


def _entries(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """``(line or index from 1, decoded)``."""
    if text.lstrip().startswith("["):
        try:
            yield from enumerate(json.loads(text), start=1)
        except ValueError as error:
            raise UsageError(f"--prompts {path}: not JSON: {error}") from error
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise UsageError(f"--prompts {path}:{number}: not JSON: {error}") from error


def _prompt(path: Path, number: int, entry: object) -> Prompt:
    where = f"--prompts {path}:{number}"
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where}: {EXPECTED}, found {type(entry).__name__}")
    text = entry.get("text", entry.get("prompt"))
    if text is None:
        text = _conversation(entry)
    if not isinstance(text, str):
        raise UsageError(f"{where}: {EXPECTED}, found the keys {', '.join(map(str, entry)) or 'none'}")
    if not text:
        raise UsageError(f"{where}: an empty prompt takes SGLang's server down")
    kind = str(entry.get("kind") or "own").partition("-")[0] or "own"
    name = str(entry.get("id") or number)
    # The kind is what stands before the first hyphen of an id.
    return Prompt(name if name.startswith(f"{kind}-") else f"{kind}-{name}", kind, text)


def _conversation(entry: Mapping[str, object]) -> str | None:
    turns = entry.get("messages", entry.get("conversations"))
    if not isinstance(turns, list):
        return None
    told: list[tuple[str, str]] = []
    for turn in turns:
        if not isinstance(turn, Mapping):
            return None
        who, said = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
        if not isinstance(who, str) or not isinstance(said, str):
            return None
        told.append((who, said))
    last = max((place for place, (who, _) in enumerate(told) if who in PERSON), default=None)
    if last is None:
        return None
    lines = [f"{'User' if who in PERSON else who.capitalize()}: {said}" for who, said in told[: last + 1]]
    return told[last][1] if last == 0 else "\n".join([*lines, "Assistant:"])
