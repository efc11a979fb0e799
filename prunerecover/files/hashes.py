"""Hashes of files, to recognise files written together."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's content, read in parts."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
