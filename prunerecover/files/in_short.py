"""Texts of files and of their errors, cut to what a message has room for: anybody may have written them."""

from __future__ import annotations

from pydantic import ValidationError

ERRORS, PLACE, REASON = 3, 80, 400


def in_short(value: object, most: int = PLACE) -> str:
    """Return the text of a value on one line, cut in its middle.

    >>> in_short("plan" * 1000, 9)
    'pla...lan'
    """
    text = " ".join(str(value).split())
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


def errors_in_short(error: ValidationError) -> str:
    """Return the first errors of data that do not validate: where they are and why, without the data."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    told = []
    for one in found[:ERRORS]:
        reason = one["msg"].removeprefix("Value error, ").rstrip(".")
        told.append(f"{in_short('.'.join(map(str, one['loc'])) or 'it')} is wrong: {in_short(reason, REASON)}")
    return "; ".join(told) + (f"; and {len(found) - ERRORS} more" if len(found) > ERRORS else "")
