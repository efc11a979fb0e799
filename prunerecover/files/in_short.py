"""Texts from files and file errors, cut to the length of a message: the files may come from anybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

ERRORS, PLACE, REASON = 3, 80, 400
Checked = TypeVar("Checked", bound=BaseModel)


def in_short(value: object, most: int = PLACE) -> str:
    """Return the text of a value on a single line, cut in the middle.

    >>> in_short("plan" * 1000, 9)
    'pla...lan'
    """
    text = " ".join(str(value).split())
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


def validated(record: type[Checked], data: Mapping[str, Any], what: str, way_out: str) -> Checked:
    """Return the record of primitives from a file.

    Args:
        record: Class of the record.
        data: Primitives by field.
        what: Expected content, for the message.
        way_out: Last sentence of the message.

    Raises:
        ValueError: If the primitives have another form.
    """
    try:
        return record.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"Expected {what}, but {_errors_in_short(error)}. {way_out}") from None


def _errors_in_short(error: ValidationError) -> str:
    """Return the first validation errors, with place and reason, without the data."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    told = []
    for one in found[:ERRORS]:
        reason = one["msg"].removeprefix("Value error, ").rstrip(".")
        told.append(f"{in_short('.'.join(map(str, one['loc'])) or 'it')} is wrong: {in_short(reason, REASON)}")
    return "; ".join(told) + (f"; and {len(found) - ERRORS} more" if len(found) > ERRORS else "")
