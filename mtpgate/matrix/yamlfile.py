"""Read a YAML file that a person wrote and check it against a pydantic model, with every fault named by line and key.

The file is composed to YAML nodes rather than loaded to objects: nodes keep the line of each key, show keys that were
written twice, and an alias is one shared node, so a file whose aliases multiply is counted before it fills the memory.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mtpgate.errors import UsageError

MAX_BYTES = 1 << 20
"""A matrix is a page of text; a larger file is something else, opened by mistake."""
MAX_NODES = 20_000
"""Keys and values, aliases followed: some hundred times what a large matrix has."""

KeyPath = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Problem:
    """One fault: the key it is at and what is wrong with it, for a person."""

    key: KeyPath
    message: str


@dataclass
class Document:
    """A file's plain data, the 1-based line of each key in it, and the faults that were found while reading."""

    path: Path
    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, key: KeyPath) -> int:
        """The line of the key, or of the nearest key above it that is in the file."""
        while key and key not in self.lines:
            key = key[:-1]
        return self.lines.get(key, 1)

    def error(self, problems: list[Problem]) -> UsageError:
        """All problems as one error, in the order of the file, one a line."""
        placed = sorted({(self.line(problem.key), *_text(problem)) for problem in problems})
        return UsageError("\n".join(f"{self.path}:{line}: {key}{message}" for line, key, message in placed))


def _text(problem: Problem) -> tuple[str, str]:
    return (f"{spell(problem.key)}: " if problem.key else "", problem.message)


def spell(key: KeyPath) -> str:
    """``("axes", "speculation", 1, "num_step")`` as ``axes.speculation[1].num_step``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part.strip()}" for part in key).lstrip(".")


def did_you_mean(word: str, known: Iterator[str] | list[str]) -> str:
    """``; did you mean x?`` or ``; known: a, b`` (up to 12 names), to end a message with."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known: {', '.join(names)}" if 0 < len(names) <= 12 else ""


def read_yaml(path: Path) -> Document:
    """Read one YAML document. UsageError if it is no readable file, no YAML, empty, or too large to be meant."""
    root = _compose(path, _read_text(path))
    if root is None:
        raise UsageError(f"{path}:1: the file is empty; expected a mapping of keys")
    document = Document(path, None)
    try:
        document.data = _Reader(document).value(root, ())
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply, or an alias that contains itself") from None
    return document


def validate(document: Document, model: type[Model], also: Sequence[Problem] = ()) -> Model:
    """The document as a ``model``; UsageError that lists every fault of the file, and the caller's own findings."""
    if not isinstance(document.data, dict):
        found = _kind(document.data)
        raise UsageError(f"{document.path}:1: expected a mapping of keys at the top, found {found}")
    problems = [*document.problems, *also]
    try:
        result = model.model_validate(document.data)
    except ValidationError as error:
        faults = [problem for details in error.errors() for problem in _problems(document.data, model, details)]
        raise document.error(problems + faults) from None
    if problems:
        raise document.error(problems)
    return result


def _read_text(path: Path) -> str:
    if path.is_dir():
        raise UsageError(f"{path}: is a directory; expected a YAML file")
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file{_neighbours(path)}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {MAX_BYTES >> 20} MiB; expected a YAML file of some pages")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start}); expected a YAML file") from None
    if "\0" in text:
        raise UsageError(f"{path}: a binary file; expected YAML text")
    return text


def _neighbours(path: Path) -> str:
    """The YAML files beside a missing one: what the person probably meant to type."""
    names = sorted(found.name for found in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
    return did_you_mean(path.name, names) if names else ""


def _compose(path: Path, text: str) -> Node | None:
    yaml = YAML(typ="safe", pure=True)
    try:
        return yaml.compose(text)  # type: ignore[no-any-return]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f":{mark.line + 1}" if mark is not None else ""
        reason = " ".join(part for part in (error.context, error.problem) if part)
        raise UsageError(f"{path}{where}: not valid YAML: {reason}") from None
    except YAMLError as error:
        raise UsageError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply to be a matrix") from None


class _Reader:
    """Turns nodes into plain data and writes down lines and repeated keys on the way."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.seen = 0
        self.constructor = YAML(typ="safe", pure=True).constructor

    def value(self, node: Node, key: KeyPath) -> Any:
        self.seen += 1
        if self.seen > MAX_NODES:
            raise UsageError(f"{self.document.path}: more than {MAX_NODES} values once its aliases are followed")
        self.document.lines.setdefault(key, node.start_mark.line + 1)
        if isinstance(node, MappingNode):
            return self._mapping(node, key)
        if isinstance(node, SequenceNode):
            return [self.value(child, (*key, index)) for index, child in enumerate(node.value)]
        return self._scalar(node, key)

    def _scalar(self, node: Node, key: KeyPath) -> Any:
        assert isinstance(node, ScalarNode)
        try:
            return self.constructor.construct_object(node)
        except (YAMLError, ValueError, KeyError):
            self.document.problems.append(Problem(key, f"cannot be read as {node.tag}: {node.value!r}"))
            return None

    def _mapping(self, node: MappingNode, key: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name_node, child in node.value:
            if not isinstance(name_node, ScalarNode):
                self.document.problems.append(Problem(key, "a key must be a word, found a list or a mapping"))
                continue
            name = str(name_node.value)
            inner = (*key, name)
            line = name_node.start_mark.line + 1
            if name in result:
                first = self.document.lines[inner]
                self.document.lines[(*key, f"{name} ")] = line
                self.document.problems.append(Problem((*key, f"{name} "), f"written twice (first on line {first})"))
                continue
            self.document.lines[inner] = line
            result[name] = self.value(child, inner)
        return result


def _problems(data: Any, model: type[BaseModel], details: ErrorDetails) -> list[Problem]:
    key = _place(data, details["loc"], details["type"])
    if details["type"] == "faults":
        return [Problem((*key, *inner), message) for inner, message in details["ctx"]["faults"]]
    return [Problem(key, _message(model, details, str(key[-1]) if key else ""))]


def _place(data: Any, loc: tuple[str | int, ...], kind: str) -> KeyPath:
    """Pydantic's location without the names of union members that it puts between the keys of the file."""
    key: list[str | int] = []
    for position, part in enumerate(loc):
        inside_list = isinstance(data, list) and isinstance(part, int) and part < len(data)
        if inside_list or (isinstance(data, dict) and part in data):
            data = data[part]
        elif not (position == len(loc) - 1 and kind == "missing"):
            continue
        key.append(part)
    return tuple(key)


def _message(model: type[BaseModel], details: ErrorDetails, name: str) -> str:
    kind = details["type"]
    if kind == "extra_forbidden":
        return f"unknown key{did_you_mean(name, _known_keys(model, details['loc']))}"
    if kind == "missing":
        return "missing; this key is required"
    if kind in {"value_error", "assertion_error"}:
        return re.sub(r"^(Value|Assertion) error, ", "", details["msg"])
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", details["ctx"]["expected"])
        return f"unknown value {details['input']!r}{did_you_mean(str(details['input']), allowed)}"
    text = details["msg"].removeprefix("Input should be ")
    text = f"expected {text}" if text != details["msg"] else details["msg"]
    shown = details.get("input")
    return f"{text}, found {_kind(shown)}" if shown is not None else f"{text}, found nothing"


def _known_keys(model: type[BaseModel], loc: tuple[str | int, ...]) -> list[str]:
    """The keys that the model at ``loc`` has, under the names that a file uses for them."""
    found: Any = model
    for part in loc[:-1]:
        found = _inner_model(found, part)
        if found is None:
            return []
    return [item.alias or name for name, item in found.model_fields.items()]


def _inner_model(model: Any, part: str | int) -> Any:
    if isinstance(part, int):
        return model
    for name, item in model.model_fields.items():
        if part in {name, item.alias}:
            return next(_models_in(item.annotation), None)
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models_in(inner)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return repr(value)
