"""Files of one JSON object per line, which grow as results come, so that a search that is killed goes on from there.

A line that was cut off in the middle of writing is left out, and the next one does not continue it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def append_json(file: Path, data: dict[str, Any]) -> None:
    """Add one line to a file, on the disk before this returns; its folder is made.

    Args:
        file: That may be there.
        data: JSON primitives.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b") as stream:
        stream.seek(max(stream.seek(0, os.SEEK_END) - 1, 0))
        ends_well = stream.read(1) in (b"", b"\n")
        stream.write(b"" if ends_well else b"\n")
        stream.write(json.dumps(data).encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())


def complete_lines(file: Path) -> list[str]:
    """Return the lines that end in a newline, but for those that a kill cut off in the middle of an object."""
    text = file.read_text(encoding="utf-8")
    lines = text.split("\n")[:-1]
    return [line for line in lines if line and not (line.startswith("{") and not line.endswith("}"))]
