"""A network before it was narrowed: without the units of depth that the same plan removes first."""

from __future__ import annotations

from torch import nn

from prunerecover.model.copies import deep_copy
from prunerecover.plan.edits import NARROWING, Edit, Narrow
from prunerecover.plan.plan import Plan
from prunerecover.surgery.apply_edits import apply_edits


def narrows(plan: Plan) -> bool:
    """Return whether a plan narrows more than the number of experts."""
    return any(isinstance(edit, Narrow) and edit.kind != "expert" for edit in narrowing_of(plan).edits)


def before_narrowing(dense: nn.Module, plan: Plan) -> nn.Module:
    """Return a network as it was narrowed: without the units of depth; the dense one itself if no depth goes.

    Args:
        dense: From before the plan was applied; not changed.
        plan: Of depth first and width second, or of one of both.
    """
    first = plan.edits[: len(plan.edits) - len(narrowing_of(plan).edits)]
    if not first:
        return dense
    copied = deep_copy(dense)
    apply_edits(copied, first, plan.tensors)
    return copied


def narrowing_of(plan: Plan) -> Plan:
    """Return the part of a plan that `before_narrowing` leaves out.

    Raises:
        ValueError: If it narrows before it removes units of depth.
    """
    start = len(plan.edits)
    while start and _narrows(plan.edits[start - 1]):
        start -= 1
    if any(_narrows(edit) for edit in plan.edits[:start]):
        raise ValueError(
            f"Expected a plan that narrows last, but an edit '{plan.edits[start - 1].op}' comes after. Apply it in two "
            "plans, and reconstruct after the one that narrows, against the network it was applied to."
        )
    return plan.model_copy(update={"edits": plan.edits[start:]})


def _narrows(edit: Edit) -> bool:
    return isinstance(edit, NARROWING) and not (isinstance(edit, Narrow) and edit.serves)
