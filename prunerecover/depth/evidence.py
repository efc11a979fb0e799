"""Evidence of a plan in depth: the model after each unit; and the warning about an excess over the budget."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from prunerecover.cost.met_share import FAR
from prunerecover.plan.edits import Config, Edit
from prunerecover.plan.evidence import DepthEvidence, RemovalStep, RemovedShare
from prunerecover.plan.removed_units import edits_without_others, leave_nothing
from prunerecover.plan.units import Unit
from prunerecover.session.session import Session
from prunerecover.surgery.merging import removals_of
from prunerecover.surgery.provenance import result_of


def steps_of(session: Session, edits: Sequence[Edit], order: Sequence[Unit]) -> dict[str, Any]:
    """Return the evidence of the model after each unit; empty where units cannot go one by one.

    Args:
        session: Network and samples.
        edits: Edits of the plan.
        order: Units in the order of removal.
    """
    if not leave_nothing(edits):
        return {}
    steps, blocks, gone = list[RemovalStep](), list[str](), list[str]()
    for unit in order:
        gone.append(unit.name)
        blocks += [unit.name] if unit.kind == "block" else []
        config = next((edit.set for edit in removals_of(session.model, blocks) if isinstance(edit, Config)), {})
        own = edits_without_others(edits, gone, config)
        steps.append(RemovalStep(unit=unit.name, config=config, result=result_of(session.model, own, session.example)))
    return DepthEvidence(order=tuple(steps)).to_dict() if steps else {}


def warn_of_excess(cost: str, removed: RemovedShare) -> None:
    """Warn of an excess over the budget beyond both the smallest unit and two points.

    Args:
        cost: Name of the cost.
        removed: What goes of it.
    """
    if removed.smallest_unit is not None and removed.merged - removed.asked > max(removed.smallest_unit, FAR):
        warnings.warn(
            f"The plan removes {removed.merged:.1%} of the {cost} for a budget of {removed.asked:.1%}, "
            f"although the smallest unit holds {removed.smallest_unit:.1%}: what comes nearer was not found, or "
            "changes the output more. Ignore fewer units, or give the budget in units (remove=...).",
            stacklevel=5,
        )
