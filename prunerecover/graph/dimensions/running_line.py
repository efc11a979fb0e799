"""The running line of a model's code, for messages: an author of `torch.fft.fft2(x)` knows no `_fft_c2c`."""

from __future__ import annotations

import linecache
import sys
from types import FrameType

LONGEST = 80  # characters


def running_line() -> str:
    """Return the innermost running line of the watched model; "" for a library's line, or without a line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _package(frame) == "prunerecover":  # observers of the operation
        frame = frame.f_back
    while frame is not None and _package(frame) == "torch":
        frame = frame.f_back
    if frame is None or _package(frame) == "prunerecover":  # the caller of the model
        return ""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def _package(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]
