"""Budgets of remaining amounts: turned into shares of the network's costs, planned, and recorded as requested."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from prunerecover.cost.units.amounts import shown
from prunerecover.cost.units.cost_names import COSTS
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.session.session import Session


def planned_as_asked(session: Session, budget: Budget, plan: Callable[[Budget], Plan]) -> Plan:
    """Return the plan of a budget, with a record of the request.

    A warning says where no more is left anyway.

    Args:
        session: Network and samples.
        budget: Budget, in shares, amounts or units.
        plan: Plans a budget in shares or units.
    """
    shares = session.in_shares(budget)
    if not budget.amounts:
        return plan(budget)
    for cost, left in budget.amounts.items():
        if (dense := session.cost(cost).dense) <= left:
            words = COSTS[cost]
            warnings.warn(
                f"The network takes {shown(cost, dense)} of {words.title}{words.per}, and may keep "
                f"{shown(cost, left)}: nothing has to go for it. Ask for less, or for a share ({cost}=0.3).",
                stacklevel=4,
            )
    if not any(shares.shares.values()):
        return Plan()
    found = plan(shares)
    arguments = {**found.made_by.arguments, "budget": budget.to_dict()}
    made_by = found.made_by.model_copy(update={"arguments": arguments})
    return found.model_copy(update={"made_by": made_by}).with_tensors(found.tensors)
