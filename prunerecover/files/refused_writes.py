"""Errors of refused writes, with the folder and a way out in the message.

The system's own messages name a hidden unfinished file, or none: PyTorch and safetensors pass on less than they got.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

REFUSALS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
}
IN_TEXT = re.compile(r"\(os error (\d+)\)")  # in errors of safetensors, outside OSError


@contextmanager
def naming_the_folder(path: Path) -> Iterator[None]:
    """Explain refusals of the system inside a `with` block that writes a file or folder.

    Errors with another place pass unchanged, and ValueError, too: the message already explains the cause.

    Args:
        path: Path of the file or folder.

    Raises:
        OSError: If the folder is read-only, full, no folder, or a name in the path is too long; of the class of the
            system's error (PermissionError).
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        code = _code_of(error, path)
        if code not in REFUSALS:
            raise
        told = type(OSError(code, ""))(
            f"Expected to write {path.name[:80]} in {str(path.parent)[:200]}, but the system refuses: "
            f"{os.strerror(code)}. What was there is as it was. Make room there or get the right to write, or give "
            "another path."
        )
        told.errno = code
        raise told from error


def _code_of(error: BaseException | None, path: Path) -> int | None:
    """Return the system's error number of an error at a path, or of the error behind."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno if _is_at(error, path) else None
        if found := IN_TEXT.search(str(error)):
            return int(found[1])
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def _is_at(error: OSError, path: Path) -> bool:
    """Whether an error names a parent folder of a path, or a place beside the path; an error without a name counts."""
    if not isinstance(error.filename, str):
        return True
    named, place = Path(os.path.realpath(error.filename)), Path(os.path.realpath(path))
    return named in place.parents or place.parent in named.parents
