"""Names in `ignore` when depth and width share a budget: units of depth, groups of width, or both."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import nn

from prunerecover.depth.arguments import kinds_of
from prunerecover.model.arguments import check_patterns, matches
from prunerecover.model.batches import ModelInputs
from prunerecover.planning.arguments import PruningConfig
from prunerecover.sites.find import find_units
from prunerecover.width.groups.discovery import find_groups

T = TypeVar("T")


def possible(make: Callable[[], T]) -> tuple[T | None, str]:
    """Return the made object, or None and the message of the error.

    >>> possible(lambda: int("7")), possible(lambda: int("seven"))
    ((7, ''), (None, "invalid literal for int() with base 10: 'seven'"))
    """
    try:
        return make(), ""
    except ValueError as refusal:
        return None, str(refusal)


def patterns_of_depth(
    model: nn.Module, example: ModelInputs, config: PruningConfig, kinds: Sequence[str]
) -> tuple[str, ...]:
    """Return the patterns in `ignore` that match units of depth.

    Args:
        model: The dense network.
        example: Inputs for the model.
        config: Arguments with the patterns in `ignore`.
        kinds: Kinds of width.

    Raises:
        ValueError: If a pattern matches neither a unit of depth nor a group of width.
    """
    if not config.ignore:
        return ()
    of_depth = kinds_of(model, None, config.depth_kinds())
    units, _ = possible(lambda: [unit.name for unit in find_units(model, example, of_depth)])
    groups, _ = possible(lambda: _group_names(model, example, kinds))
    check_patterns(config.ignore, [*(units or ()), *(groups or ())], "units of depth or groups of width")
    return tuple(pattern for pattern in config.ignore if any(matches(name, [pattern]) for name in units or ()))


def groups_that_stay(
    model: nn.Module, example: ModelInputs, config: PruningConfig, kinds: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of the groups that `ignore` matches, as patterns.

    Args:
        model: Dense network.
        example: Inputs for the model.
        config: Arguments with the patterns in `ignore`.
        kinds: Kinds of width.
    """
    if not config.ignore:
        return ()
    names = _group_names(model, example, kinds)
    return tuple(glob.escape(name) for name in names if matches(name, config.ignore))


def _group_names(model: nn.Module, example: ModelInputs, kinds: Sequence[str]) -> list[str]:
    return [group.name for group in find_groups(model, example, kinds).named]
