"""Evidence of every plan of a budget: what goes of each cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from prunerecover.plan.edits import Edit
from prunerecover.plan.evidence import BudgetEvidence, RemovedShare
from prunerecover.session.session import Session
from prunerecover.store.search_store import SearchStore

COUNTED = ("macs", "params")  # before `merge`, too


def share_evidence(
    session: Session,
    edits: Sequence[Edit],
    asked: Mapping[str, float],
    merged: Mapping[str, float],
    smallest: float | None = None,
) -> dict[str, Any]:
    """Return the evidence of the removed share of each cost of a budget; empty without edits.

    Args:
        session: Network and samples.
        edits: Edits of the plan.
        asked: Shares in the budget, by cost.
        merged: Removed shares of the merged model, by cost; of missing costs nothing is said.
        smallest: Share of the smallest unit alone, if known.
    """
    found: dict[Any, RemovedShare] = {}
    for cost in (cost for cost in asked if edits and cost in merged):
        live = {"live": session.cost(cost).live_share(edits)} if cost in COUNTED else {}
        units = {} if smallest is None else {"smallest_unit": smallest}
        found[cost] = RemovedShare.model_validate({"asked": asked[cost], "merged": merged[cost], **live, **units})
    return BudgetEvidence(removed_share=found).to_dict() if found else {}


def measured_share(session: Session, store: SearchStore, cost: str, edits: Sequence[Edit]) -> float:
    """Return the share of a cost that edits save, once merged: of no edits none; a latency is measured once.

    Args:
        session: Network and samples.
        store: Store of the search.
        cost: Name of the cost.
        edits: Edits.
    """
    if not edits:
        return 0.0
    measure = partial(session.cost(cost).removed_share, edits)
    if cost != "latency":
        return measure()
    return store.results("latency", [[str(edit) for edit in edits]], lambda _: measure())[0]
