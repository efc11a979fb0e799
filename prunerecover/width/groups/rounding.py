"""Widths in multiples: matrix units of processors work on 8, 16 or 64 numbers at once, and a rest takes as long."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prunerecover.plan.groups import Group
from prunerecover.plan.kinds import TRAITS, WIDTH_KINDS

RoundTo = int | Mapping[str, int]
BLOCK = 8  # units: default multiple to try


def check_round_to(round_to: Any) -> None:
    """Raise unless the value is None, a number of units, or a number per kind.

    Raises:
        ValueError: If a number is below 1, or a kind is unknown.
        TypeError: If the value has another type.
    """
    numbers = list(round_to.values()) if isinstance(round_to, Mapping) else [1 if round_to is None else round_to]
    kinds = list(round_to) if isinstance(round_to, Mapping) else []
    if any(type(number) is not int for number in numbers) or any(not isinstance(kind, str) for kind in kinds):
        raise TypeError(
            f"Expected round_to as a whole number, or one per kind, but got {round_to!r}. For example round_to=8 or "
            'round_to={"channel": 8, "neuron": 64}.'
        )
    unknown = [kind for kind in kinds if kind not in WIDTH_KINDS]
    if unknown:
        raise ValueError(f"Expected round_to for kinds among {', '.join(WIDTH_KINDS)}, but got '{unknown[0]}'.")
    if any(number < 1 for number in numbers):
        raise ValueError(f"Expected round_to of at least 1, but got {round_to!r}. For example round_to=8, or None.")


def rounded(groups: Sequence[Group], round_to: RoundTo | None) -> tuple[Group, ...]:
    """Return groups with numbers of kept units in multiples, besides the earlier constraints.

    A group with a width off the multiples stays whole or is narrowed to a multiple; a group below the number of
    units stays whole.

    Args:
        groups: Groups of any kinds.
        round_to: Number for all kinds with single features as units (all but heads and experts), or a number per kind;
            None: no multiples.
    """
    if round_to is None:
        return tuple(groups)
    if not isinstance(round_to, Mapping):
        round_to = {kind: round_to for kind in WIDTH_KINDS if not TRAITS[kind].composite}
    return tuple(replace(group, multiple=math.lcm(group.multiple, round_to.get(group.kind, 1))) for group in groups)
