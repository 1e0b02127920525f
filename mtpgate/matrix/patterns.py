"""The patterns of a matrix file: ``when``, and a ``reference`` by arguments. Read by :mod:`mtpgate.matrix.matching`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from mtpgate.matrix.values import SPECULATION_ARGUMENTS, FileModel, argument


def _pattern(value: Any) -> Any:
    if not isinstance(value, list):
        return argument(value)
    if not value:
        raise ValueError("an empty list matches nothing")
    return tuple(argument(item) for item in value)


PatternValue = Annotated[Any, PlainValidator(_pattern)]


class SpeculationPattern(FileModel):
    """A pattern over the speculative settings; a key that is left out matches anything."""

    algorithm: PatternValue = "*"
    num_steps: PatternValue = "*"
    eagle_topk: PatternValue = "*"
    num_draft_tokens: PatternValue = "*"

    def arguments(self) -> dict[str, Any]:
        named = {SPECULATION_ARGUMENTS[name]: getattr(self, name) for name in self.model_fields_set}
        return {"speculative_algorithm": "*", **named}


class When(BaseModel):
    """A pattern over a cell's arguments: all its keys must match (see :mod:`mtpgate.matrix.matching`)."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, PatternValue] = Field(init=False)
    speculation: SpeculationPattern | None = None

    @model_validator(mode="after")
    def _not_empty(self) -> When:
        if not self.model_fields_set:
            raise ValueError("an empty pattern matches every cell; name at least one argument")
        return self

    def patterns(self) -> dict[str, Any]:
        """The pattern of each ServerArgs name; None means unset."""
        result: dict[str, Any] = {}
        if "speculation" in self.model_fields_set:
            result = {"speculative_algorithm": None} if self.speculation is None else self.speculation.arguments()
        return result | dict(self.__pydantic_extra__ or {})
