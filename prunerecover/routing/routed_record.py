"""The record in the folder of a routed model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from prunerecover.plan.records import Record

SCHEMA = "prunerecover.routed/1"


class RouterRecord(Record):
    """What makes a router again.

    Attributes:
        kind: Name of its class in `ROUTERS`.
        settings: As its `save` returned them.
        weights: sha256 of the file with its weights.
    """

    kind: Literal["prefix", "encoder"]
    settings: dict[str, int]
    weights: str


class RoutedRecord(Record):
    """What `routing.json` says.

    Attributes:
        run: The mark of the run that wrote it; empty: none did.
        base: Path or hub id of the dense model, or where its weights are in the folder.
        tensors: Hash of its names and shapes.
        weights: Hash of its values; None if they were not there.
        in_float16: The hash that they have in float16; None in folders of before.
        sets: sha256 of the file with the sets.
        default: Name of the set without routing.
        routed: Whether the router is asked.
        router: None: there is none.
        files: sha256 of all files that were written with it, by path in the folder; empty in folders of before.
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
