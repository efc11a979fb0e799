"""Reading of JSON from any author: no larger and no more deeply nested than the files of this package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LARGEST = 256 * 2**20  # bytes; the plan of a network with a million units has 20 MiB
DEEPEST = 64  # levels of lists and objects; a plan has 10


def read_json(path: Path, what: str) -> Any:
    """Return the content of a JSON file.

    Args:
        path: Path of an existing file.
        what: Kind of content, for messages: "a plan".

    Raises:
        ValueError: If the file is no JSON, is larger than 256 MiB, or has more than 64 levels.
    """
    size = path.stat().st_size
    if size > LARGEST:
        raise ValueError(
            f"Expected {what} of at most {LARGEST // 2**20} MiB at {path}, but got {size / 2**20:,.0f} MiB. Is it "
            "another file?"
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(_too_deep(path, what)) from None
    except ValueError as error:  # also bytes outside text, and numbers of thousands of digits
        raise ValueError(
            f"Expected {what} in JSON at {path}, but it cannot be read: {error}. Is it cut off? Copy it again."
        ) from None
    if _is_deeper(data, DEEPEST):
        raise ValueError(_too_deep(path, what))
    return data


def _too_deep(path: Path, what: str) -> str:
    return (
        f"Expected {what} with at most {DEEPEST} levels of lists and objects at {path}, but got more. Is it another "
        "file?"
    )


def _is_deeper(data: Any, levels: int) -> bool:
    """Whether lists and objects are nested more than `levels` deep."""
    level = [data]
    for _ in range(levels + 1):
        held = [entry for entry in level if isinstance(entry, list | dict)]
        level = [inner for entry in held for inner in (entry.values() if isinstance(entry, dict) else entry)]
        if not held:
            return False
    return True
