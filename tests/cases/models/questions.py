"""Questions of the words of `language`, as rows and as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def question_rows(count: int) -> list[dict[str, Any]]:
    """Return questions of two or three choices, of which the right one is any."""
    return [
        {
            "question": f"w{3 + i % 20} w{7 + 2 * i % 40} w{20 + i % 30}",
            "choices": [f"w{9 + i % 40}", f"w{10 + i % 40} w{30 - i % 20} w12", "w4 w5"][: 2 + i % 2],
            "answer": i % 2,
        }
        for i in range(count)
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
