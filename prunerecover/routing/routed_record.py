"""Record in the folder of a routed model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from prunerecover.plan.records import Record

SCHEMA = "prunerecover.routed/1"


class RouterRecord(Record):
    """Data to restore a router.

    Attributes:
        kind: Name of the class in `ROUTERS`.
        settings: Settings from `save` of the router.
        weights: sha256 of the file with the weights.
    """

    kind: Literal["prefix", "encoder"]
    settings: dict[str, int]
    weights: str


class RoutedRecord(Record):
    """Content of `routing.json`.

    Attributes:
        run: Mark of the run that wrote the folder; empty: no run.
        base: Path or hub id of the dense model, or the path of its weights in the folder.
        tensors: Hash of names and shapes.
        weights: Hash of the values; None without values.
        in_float16: Hash of the values in float16; None in older folders.
        sets: sha256 of the file with the sets.
        default: Name of the set without routing.
        routed: Whether the router is used.
        router: Record of the router; None: no router.
        files: sha256 of all files of the folder, by relative path; empty in older folders.
    """

    schema_: str = Field(default=SCHEMA, validation_alias="schema", serialization_alias="schema")
    run: str = ""
    base: str
    tensors: str
    weights: str | None
    in_float16: str | None = None
    sets: str
    default: str
    routed: bool
    router: RouterRecord | None
    files: dict[str, str] = {}
