"""Plans and measurements of a joint search in the store, not repeated after an interruption."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from prunerecover.calibration.learning import TAKEN
from prunerecover.calibration.steps import WANTED_OUTPUTS
from prunerecover.cost.met_share import BudgetMissed
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.store.search_store import SearchStore

TUNED = f"{WANTED_OUTPUTS} outputs in {TAKEN} steps"  # plans that were tuned in another way are made again


def kept_plan(store: SearchStore, names: Sequence[str], make: Callable[[], Plan], *, everywhere: bool = False) -> Plan:
    """Return the stored plan of these names, or make it; its warnings are repeated either way.

    Args:
        store: Store of the search.
        names: Identity of the plan within the search.
        make: Makes the plan.
        everywhere: Whether all ranks make the plan together.
    """

    def made() -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plan = make()
        said = [(str(one.message), issubclass(one.category, BudgetMissed)) for one in caught]
        return plan.to_dict(), dict(plan.tensors), said

    ((data, tensors, said),) = store.results("plan", [[*names, TUNED]], lambda _: made(), everywhere=everywhere)
    for text, missed in said:
        warnings.warn(text, BudgetMissed if missed else UserWarning, stacklevel=3)
    return Plan.from_dict(data, {name: value.cpu() for name, value in tensors.items()})


def kept_budget(store: SearchStore, asked: Budget, shares: Budget) -> Budget:
    """Return the shares of an amount as found, perhaps by a clock, when the search began.

    Args:
        store: Store of the search.
        asked: Budget as requested.
        shares: Budget in shares, as found now.
    """
    if not asked.amounts:
        return shares
    (found,) = store.results("budget", [[str(asked.to_dict())]], lambda _: dict(shares.shares))
    given: dict[str, Any] = {**found}
    return replace(shares, **given)
