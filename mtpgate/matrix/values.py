"""The values that a matrix file is made of, and how each is checked: arguments, names, variables, phases, numbers."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from mtpgate.matrix.cell import ArgumentValue
from mtpgate.matrix.vocabulary import Phase
from mtpgate.matrix.yamlfile import did_you_mean

LAUNCHER_ARGUMENTS = {
    "host": "the launcher chooses it",
    "port": "the launcher takes a free one",
    "model_path": "write it as model.path",
    "revision": "write it as model.revision",
    "trust_remote_code": "write it as model.trust_remote_code",
}
"""Arguments of SGLang that a matrix may not set, and what to do instead."""

SPECULATION_ARGUMENTS = {
    "algorithm": "speculative_algorithm",
    "num_steps": "speculative_num_steps",
    "eagle_topk": "speculative_eagle_topk",
    "num_draft_tokens": "speculative_num_draft_tokens",
}
"""The short names of a ``speculation`` point and the ServerArgs names that they stand for."""


class FileModel(BaseModel):
    """Base of all: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def faults(found: list[tuple[tuple[str | int, ...], str]]) -> PydanticCustomError:
    """One pydantic error that carries several faults, each with its key below the model that raises it."""
    return PydanticCustomError("faults", "several faults", {"faults": found})


def argument(value: Any) -> ArgumentValue | None:
    if isinstance(value, dict | list):
        raise ValueError(
            f"expected a word, a number or true/false, found {'a list' if isinstance(value, list) else 'a mapping'}"
        )
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ValueError(
        f"expected a word, a finite number or true/false, found {value!s}; put it in quotes if it is a word"
    )


def _set_argument(value: Any) -> ArgumentValue:
    result = argument(value)
    if result is None:
        raise ValueError("has no value; leave the key out to use SGLang's default")
    return result


def name_fault(name: str) -> str | None:
    """Why ``name`` cannot be a ServerArgs name that a matrix sets; None if it can."""
    if name in LAUNCHER_ARGUMENTS:
        return f"not an argument of a cell: {LAUNCHER_ARGUMENTS[name]}"
    neutral = name.lstrip("-").replace("-", "_")
    if neutral != name and re.fullmatch(r"[a-z]\w*", neutral):
        return f"spelled as a flag; write the ServerArgs name {neutral}"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return "not a ServerArgs name (lower case letters, digits and _)"
    return None


def _argument_name(name: str) -> str:
    if fault := name_fault(name):
        raise ValueError(fault)
    return name


def _matrix_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise ValueError(f"expected lower case letters, digits and . _ - (it names files), found {name!r}")
    return name


def _phase(name: str) -> str:
    if name not in get_args(Phase):
        raise ValueError(f"unknown phase{did_you_mean(name, list(get_args(Phase)))}")
    return name


def _variable_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError("not the name of an environment variable")
    return name


def _variable(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("expected text or a number; put other values in quotes")
    return str(value)


Argument = Annotated[ArgumentValue, PlainValidator(_set_argument)]
ArgumentOrNull = Annotated[ArgumentValue | None, PlainValidator(argument)]
ArgumentName = Annotated[str, AfterValidator(_argument_name)]
Environment = dict[Annotated[str, AfterValidator(_variable_name)], Annotated[str, PlainValidator(_variable)]]
Name = Annotated[str, AfterValidator(_matrix_name)]
Count = Annotated[int, Field(strict=True, ge=1)]
AcceptLength = Annotated[float, Field(strict=True, ge=1.0, allow_inf_nan=False)]
PhaseName = Annotated[str, AfterValidator(_phase)]
Seconds = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
GiB = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


def name_faults(data: Any) -> list[tuple[tuple[str | int, ...], str]]:
    """Names that are no ServerArgs names, in the places of a file's raw data where any such name may be a key.

    The models leave these keys open (``axes``, ``when``, ``include``, a ``reference`` pattern).
    """
    if not isinstance(data, dict):
        return []
    places: list[tuple[tuple[str | int, ...], Any]] = [(("reference",), data.get("reference"))]
    axes = data.get("axes")
    if isinstance(axes, dict):
        # An axis whose points are mappings has a name of its own, not an argument's.
        plain = {name: points for name, points in axes.items() if not _all_mappings(points)}
        places.append((("axes",), plain))
    for section, inner in (("conditions", "when"), ("exclude", "when"), ("include", None)):
        rows = data.get(section)
        for index, row in enumerate(rows if isinstance(rows, list) else []):
            if isinstance(row, dict):
                key = (section, index) if inner is None else (section, index, inner)
                places.append((key, row if inner is None else row.get(inner)))
    return [
        ((*key, name), fault)
        for key, mapping in places
        if isinstance(mapping, dict)
        for name in mapping
        if name != "speculation" and (fault := name_fault(name))
    ]


def _all_mappings(points: Any) -> bool:
    return isinstance(points, list) and all(isinstance(point, dict) for point in points)
