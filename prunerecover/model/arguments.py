"""Checks of arguments for planning in depth, planning in width and callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatch


def check_seed(seed: int) -> None:
    """Raise TypeError unless the seed is a whole number."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"Expected argument seed to be a whole number, but got {seed!r}. For example seed=0.")


def check_number(name: str, value: float) -> None:
    """Raise TypeError unless an argument is a number.

    Args:
        name: Name of the argument.
        value: Given value.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"Expected argument {name} to be a number, but got {value!r}.")


def check_whole(name: str, value: int, least: int) -> None:
    """Raise TypeError unless an argument is a whole number, and ValueError if the number is too small.

    Args:
        name: Name of the argument.
        value: Given value.
        least: Smallest allowed value.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"Expected argument {name} to be a whole number, but got {value!r}.")
    if value < least:
        raise ValueError(f"Expected argument {name} to be at least {least}, but got {value}.")


def check_flag(name: str, value: bool | None) -> None:
    """Raise TypeError unless an argument is True, False or None: any string would count as True.

    Args:
        name: Name of the argument.
        value: Given value.
    """
    if not isinstance(value, bool | None):
        raise TypeError(f"Expected argument {name} to be True or False, but got {value!r}.")


def patterns_of(ignore: Sequence[str]) -> tuple[str, ...]:
    """Return shell patterns as a tuple, also a single pattern.

    Raises:
        TypeError: If the argument holds no patterns.
    """
    if isinstance(ignore, str):
        return (ignore,)
    patterns = tuple(ignore) if isinstance(ignore, Iterable) else (ignore,)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(
            f"Expected argument ignore to be shell patterns of names, but got {ignore!r}. "
            'For example ignore=["blocks.0.*"], or ignore=() for none.'
        )
    return patterns


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches any of the shell patterns.

    >>> matches("blocks.0.attn", ["blocks.1.*", "*.attn"])
    True
    """
    return any(fnmatch(name, pattern) for pattern in patterns)


def check_patterns(ignore: Sequence[str], names: Sequence[str], what: str) -> None:
    """Raise ValueError if a shell pattern matches no name.

    Args:
        ignore: Shell patterns.
        names: All names; the first serves as an example.
        what: Kind of the named objects, for the message: "units".
    """
    for pattern in ignore:
        if not any(fnmatch(name, pattern) for name in names):
            raise ValueError(
                f"Expected argument ignore to match {what}{f' such as {names[0]}' if names else ''}, but '{pattern}' "
                "matches none. List the names with find_sites."
            )
