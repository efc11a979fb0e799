"""Write files and folders so that a process that is killed leaves the old or the new ones, and never a part of either.

What is written lies under a hidden name beside its place, and takes that place by a rename. A hidden file that a kill
left behind is of no use, and can be deleted; of folders, see `whole_folder`. Not covered: file systems on which a
rename is no single operation.
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
    """Yield a name to write to; when the block ends well, that file takes the place of `path`, else it is deleted.

    Args:
        path: Of the file; its folder is made. The other name has the same suffix. A link stays, and what it points to
            is replaced; what is no ordinary file, such as a pipe, is written to as it is.

    Raises:
        OSError: If the folder does not take it; see `naming_the_folder`.
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
    """Write a file of text in UTF-8."""
    with atomic_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder to write to; when the block ends well, it takes the place of `path`, else it is deleted.

    Two renames do that. A kill between them leaves no folder at `path`, and both beside it: see `whole_folder`.

    Args:
        path: Of the folder; what is there goes once the new one is complete.

    Raises:
        OSError: If the folder around it does not take it; see `naming_the_folder`.
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
    """Return the folder to read for `path`: the complete new one, if a kill came between the renames that replace it.

    >>> whole_folder(Path("pruned"))
    PosixPath('pruned')
    """
    if path.exists():
        return path
    complete = [new for old in _left_by_kills(path) if (new := old.with_suffix(NEW)).is_dir()]
    return max(complete, key=lambda folder: folder.stat().st_mtime_ns, default=path)


def _left_by_kills(path: Path) -> list[Path]:
    """Return former folders of `path` that a kill left there."""
    start = f".{path.name}."
    if not path.parent.is_dir():
        return []
    return [p for p in path.parent.iterdir() if p.name.startswith(start) and p.suffix == OLD]
