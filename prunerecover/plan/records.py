"""Records beside a plan's edits: its start, its end, and its maker."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

T = TypeVar("T")
Items: TypeAlias = Annotated[tuple[T, ...], Field(fail_fast=True)]  # a file may hold a million that are wrong

LONGEST_NAME = 1000  # letters of a path or call in an edit: messages repeat it

# Fields that plans made before they were known are written without, as they were read.
LATER = ("settings", "constructed", "not_constructed")


class Record(BaseModel):
    """Frozen data of known fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @model_serializer(mode="wrap")
    def _without_what_older_plans_lack(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value or name not in LATER}


class Source(Record):
    """The model a plan starts from.

    Attributes:
        class_: Import path of its class, for messages and for transformers' classes.
        constructor: How to build it again, or None if only its owner can: see `constructors`.
        tensors: Hash of its class, parameter names and shapes.
        weights: Hash of its values; None if they were not there (meta device).
        settings: What does not show in shapes, such as the number of heads: see `settings_of`.
        constructed: Hash of the constructor, by which an edited one is known; None if there is none.
        not_constructed: Why there is none.
    """

    class_: str = Field(default="", validation_alias="class", serialization_alias="class")
    constructor: dict[str, Any] | None = None
    tensors: str = ""
    weights: str | None = None
    settings: dict[str, str] = {}
    constructed: str | None = None
    not_constructed: str = ""


class Result(Record):
    """The model a plan ends in: hash of names and shapes, parameters, MACs per sample (0: not counted), settings."""

    tensors: str = ""
    params: int = 0
    macs: int = 0
    settings: dict[str, str] = {}


class MadeBy(Record):
    """Provenance: which method, with which arguments, version and seed."""

    method: str = ""
    arguments: dict[str, Any] = {}
    version: str = ""
    seed: int = 0
