"""Atomic files and folders: a killed process leaves the old or the new content, never a part of either.

New content lies under a hidden name beside its place until a rename. A hidden file left by a kill is useless and can be
deleted; for folders, see `whole_folder`. Not covered: file systems where a rename is no single operation.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prunerecover.files.refused_writes import naming_the_folder

NEW, OLD = ".new", ".old"


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a name to write to; after a successful block the file replaces `path`, else it is deleted.

    Args:
        path: Path of the file; the parent folder is made. The yielded name has the same suffix. A link stays, and the
            target is replaced; a special file (a pipe) is written directly.

    Raises:
        OSError: If the folder refuses the file; see `naming_the_folder`.
    """
    path = Path(os.path.realpath(path))
    with naming_the_folder(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            yield path
            return
        unfinished = path.with_name(f".{path.stem}.{uuid.uuid4().hex[:8]}{NEW}{path.suffix}")
        try:
            yield unfinished
            with unfinished.open("rb+") as stream:
                os.fsync(stream.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file in UTF-8."""
    with atomic_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder to write to; after a successful block it replaces `path`, else it is deleted.

    The replacement takes two renames. A kill between the renames leaves no folder at `path`, and both beside `path`:
    see `whole_folder`.

    Args:
        path: Path of the folder; old content is deleted once the new folder is complete.

    Raises:
        OSError: If the parent folder refuses the folder; see `naming_the_folder`.
    """
    path = Path(path)
    mark = f".{path.name}.{uuid.uuid4().hex[:8]}"
    new, old = (path.parent / f"{mark}{end}" for end in (NEW, OLD))
    with naming_the_folder(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        new.mkdir()
        try:
            yield new
            if path.exists():
                path.rename(old)
            new.rename(path)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            if old.exists():
                old.rename(path)
            raise
    for left in _left_by_kills(path):
        shutil.rmtree(left, ignore_errors=True)
        shutil.rmtree(left.with_suffix(NEW), ignore_errors=True)


def whole_folder(path: Path) -> Path:
    """Return the folder to read for `path`: the complete new folder after a kill between the two renames.

    >>> whole_folder(Path("pruned"))
    PosixPath('pruned')
    """
    if path.exists():
        return path
    complete = [new for old in _left_by_kills(path) if (new := old.with_suffix(NEW)).is_dir()]
    return max(complete, key=lambda folder: folder.stat().st_mtime_ns, default=path)


def _left_by_kills(path: Path) -> list[Path]:
    """Return the former folders of `path` left by kills."""
    start = f".{path.name}."
    if not path.parent.is_dir():
        return []
    return [p for p in path.parent.iterdir() if p.name.startswith(start) and p.suffix == OLD]
