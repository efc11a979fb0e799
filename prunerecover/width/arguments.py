"""Arguments of planning in width: checked before anything is computed, and filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from prunerecover.plan.budget import Budget
from prunerecover.width.allocation.greedy_fill import kind_of
from prunerecover.width.allocation.tolerance import check_tolerance
from prunerecover.width.groups.discovery import FOUND_KINDS, check_kinds
from prunerecover.width.signals.signals import SIGNALS

Allocation = Literal["per_cost", "tolerance", "uniform", "global"]
WidthReplace = Literal["calibrated", "zero"]


@dataclass(frozen=True)
class Rule:
    """How units are chosen: arguments of `plan_width`, with the signals that None stands for."""

    allocation: Allocation
    removal: str | None
    protection: str
    tolerance: float | None

    @classmethod
    def of(cls, allocation: Allocation, removal: str | None, protection: str | None, tolerance: float | None) -> Rule:
        """Fill in the signals that are not named."""
        if allocation == "tolerance":
            return cls(allocation, removal or "u_score", protection or "r_score", tolerance)
        return cls(allocation, None, protection or "gate_taylor", None)

    @property
    def signals(self) -> tuple[str, ...]:
        """Those that are read."""
        return (self.protection,) if self.removal is None else (self.removal, self.protection)


def check_arguments(
    budget: Budget | None,
    allocation: str,
    removal: str | None,
    protection: str | None,
    tolerance: float | None,
    replace: str = "calibrated",
    kinds: Sequence[str] = FOUND_KINDS,
) -> None:
    """Raise ValueError if arguments of `plan_width` are unknown or do not go together, TypeError for no `Budget`."""
    if not isinstance(budget, Budget | None):
        raise TypeError(
            f"Expected argument budget to be a Budget, but got {type(budget).__name__}. Use Budget(macs=0.3)."
        )
    if replace not in get_args(WidthReplace):
        raise ValueError(f"Expected replace among {', '.join(get_args(WidthReplace))}, but got '{replace}'.")
    if allocation not in get_args(Allocation):
        raise ValueError(f"Expected allocation among {', '.join(get_args(Allocation))}, but got '{allocation}'.")
    for name, value in (("removal", removal), ("protection", protection)):
        if value is not None and value not in SIGNALS:
            raise ValueError(f"Expected argument {name} among {', '.join(SIGNALS)}, but got '{value}'.")
    by_tolerance = allocation == "tolerance"
    if not by_tolerance and (removal is not None or tolerance is not None):
        raise ValueError(
            f"Expected removal and tolerance with allocation='tolerance' only, but got allocation='{allocation}'. What "
            "stays is decided by protection."
        )
    if (budget is None) == (tolerance is None):
        wanted = "a budget or a tolerance" if by_tolerance else "a budget, such as Budget(macs=0.3)"
        raise ValueError(f"Expected {wanted}, and not both, but got budget={budget} and tolerance={tolerance}.")
    if tolerance is not None:
        check_tolerance(tolerance)
    if budget is not None and budget.share is None:
        kind_of(budget)
    elif budget is not None and tuple(kinds) == ("expert",) and budget.params is None:
        raise ValueError(
            f"Expected a budget of params or units for experts, but got {budget.to_dict()}: a token visits as many "
            'experts however many there are. For example Budget(params=0.2) or Budget(remove={"expert": 8}).'
        )
    check_kinds(kinds)
