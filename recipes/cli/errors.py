"""Errors on the command line: one line for errors that a user can mend, a traceback for bugs."""

from __future__ import annotations

import traceback
from pathlib import Path

import prunerecover

PACKAGE = str(Path(prunerecover.__file__).parent)
OURS = (ValueError, TypeError, RuntimeError, ModuleNotFoundError)
FILES = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
LIGHTNING = "MisconfigurationException"
# Lines of jsonargparse about types that do not matter to the user.
NOISE = (
    "Does not validate against",
    "Subtypes:",
    "Errors:",
    "Expected a <class 'NoneType'>",
    "Expected a <class 'list'>",
    "Expected a path but",
    "Given value type:",
    "Given value: NestedArg",
    "Not a valid subclass of",
    "Subclass types expect",
    "a class path (str)",
    "a dict with",
)
LISTED = ("Given value: [", "Given value: {", "Given value: Namespace(")  # whole collections around a wrong entry


def told_to_user(error: BaseException) -> BaseException | None:
    """Return the first error that a user can mend, among an error and its causes; None for a bug."""
    found: BaseException | None = error
    while found is not None and not can_be_mended(found):
        found = found.__cause__
    return found


def can_be_mended(error: BaseException) -> bool:
    """Whether a user can mend an error: a refusal of this package in its own words, or a missing file."""
    if isinstance(error, FILES) or any(cls.__name__ == LIGHTNING for cls in type(error).__mro__):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    ours = bool(frames) and frames[-1].filename.startswith(PACKAGE)
    return ours and isinstance(error, OURS) and str(error).startswith("Expected")


def in_one_line(message: str) -> str:
    r"""Return a message of jsonargparse without its listing of all types.

    >>> in_one_line('Parser key "model":\n  Errors:\n    - No module named x\n    - Expected a <class \'NoneType\'>')
    'Parser key "model": No module named x.'
    """
    text = ""
    for line in (line.strip().removeprefix("- ") for line in message.splitlines()):
        if line and not line.startswith((*NOISE, *LISTED)):
            text += f" {line}" if not text or text.endswith(":") else f". {line}"
    return text.strip() + ("" if text.endswith(".") else ".")
