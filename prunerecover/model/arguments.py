"""Checks of arguments that planning in depth, planning in width and callbacks share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def check_seed(seed: int) -> None:
    """Raise TypeError unless the seed is a whole number."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"Expected argument seed to be a whole number, but got {seed!r}. For example seed=0.")


def check_flag(name: str, value: bool | None) -> None:
    """Raise TypeError unless an argument is True, False or None: any string would count as True.

    Args:
        name: Of the argument.
        value: What was given.
    """
    if not isinstance(value, bool | None):
        raise TypeError(f"Expected argument {name} to be True or False, but got {value!r}.")


def patterns_of(ignore: Sequence[str]) -> tuple[str, ...]:
    """Return shell patterns as a tuple, of one where there is one alone.

    Raises:
        TypeError: If these are no patterns.
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
