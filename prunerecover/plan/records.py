"""Records beside the edits of a plan: start, end, and maker."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

T = TypeVar("T")
Items: TypeAlias = Annotated[tuple[T, ...], Field(fail_fast=True)]  # a file may hold a million wrong entries

LONGEST_NAME = 1000  # letters of a path or call in an edit: messages repeat it

# Fields that older plans lack: such plans are written without them, as they were read.
LATER = ("settings", "constructed", "not_constructed")


class Record(BaseModel):
    """Frozen data of known fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @model_serializer(mode="wrap")
    def _without_what_older_plans_lack(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value or name not in LATER}


class OpenRecord(BaseModel):
    """Frozen data of known fields; unknown fields are dropped."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Source(Record):
    """Model at the start of a plan.

    Attributes:
        class_: Import path of the class, for messages and for classes of transformers.
        constructor: Recipe to build the model again, or None if only the owner can: see `constructors`.
        tensors: Hash of the class, parameter names and shapes.
        weights: Hash of the values; None without values (meta device).
        settings: Settings that shapes do not show, such as the number of heads: see `settings_of`.
        constructed: Hash of the constructor, to detect edits; None without a constructor.
        not_constructed: Reason for a missing constructor.
    """

    class_: str = Field(default="", validation_alias="class", serialization_alias="class")
    constructor: dict[str, Any] | None = None
    tensors: str = ""
    weights: str | None = None
    settings: dict[str, str] = {}
    constructed: str | None = None
    not_constructed: str = ""


class Result(Record):
    """Model at the end of a plan: hash of names and shapes, parameters, MACs per sample (0: not counted), settings."""

    tensors: str = ""
    params: int = 0
    macs: int = 0
    settings: dict[str, str] = {}


class MadeBy(Record):
    """Provenance: method, arguments, version and seed."""

    method: str = ""
    arguments: dict[str, Any] = {}
    version: str = ""
    seed: int = 0
