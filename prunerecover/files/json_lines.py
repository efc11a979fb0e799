"""Files with a JSON object per line, which grow with the results: a killed search continues from the file.

A line cut off during a write is left out, and the next line starts anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def append_json(file: Path, data: dict[str, Any]) -> None:
    """Append a line to a file, flushed to disk before the return; the folder is made.

    Args:
        file: File, existing or new.
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
    """Return the lines that end in a newline, except objects cut off by a kill."""
    text = file.read_text(encoding="utf-8")
    lines = text.split("\n")[:-1]
    return [line for line in lines if line and not (line.startswith("{") and not line.endswith("}"))]
