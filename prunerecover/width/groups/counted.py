"""Groups kept whole because an operation counts the units, and the warning about counted groups.

A network that divides by the number of channels, or takes a mean over channels, computes another result with fewer
channels than with channels at zero. See `graph.dimensions.statistics` for the counting operations, and for the
exception of norms.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from prunerecover.graph.dimensions.ties import Arithmetic, Statistic
from prunerecover.plan.groups import Group

NAMED = 3
FIXED = "divide by a number that is fixed in __init__ to have them narrowed"


@dataclass(frozen=True)
class CountedGroup:
    """A group that stays unchanged.

    Attributes:
        group: Group with the counted units.
        operation: Name of the counting operation, for example "mean in 'attention'".
    """

    group: Group
    operation: str


def named_operation(operation: Statistic | Arithmetic) -> str:
    """Return the name of an operation, with its module.

    >>> named_operation(Arithmetic("div", "encoder.0", (8.0,)))
    "div in 'encoder.0'"
    """
    return f"{operation.operation} in {repr(operation.path) if operation.path else 'the model itself'}"


def warn_of_counted(counted: Sequence[CountedGroup]) -> None:
    """Warn of groups with counted units."""
    groups: dict[str, list[str]] = defaultdict(list)
    for found in counted:
        groups[found.operation].append(found.group.name)
    for operation, names in groups.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        warnings.warn(
            f"{', '.join(names[:NAMED])}{more}: not narrowed, because an operation ({operation}) counts the units. "
            "With fewer units the result would differ from the result with units at zero. "
            f"{FIXED.capitalize()}, or name the groups in ignore= to silence this warning.",
            stacklevel=2,
        )
