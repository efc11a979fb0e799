"""Width for what depth leaves of a budget.

It is planned on a copy without the units of depth, merged as it will be: neurons between two linears that become one
save nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Edit, Merge
from prunerecover.plan.plan import Plan
from prunerecover.session.session import Session
from prunerecover.shared_budget.arguments import SharedBudgetConfig
from prunerecover.shared_budget.ignored import groups_that_stay
from prunerecover.surgery.merging import merge_edits
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.arguments import WidthConfig
from prunerecover.width.planner import WidthPlanner


class RestInWidth:
    """Plans in width after plans in depth, and computes once what those after one plan share.

    Args:
        session: Network and samples.
        kinds: Kinds of the units of width.
        config: All other arguments of `plan_pruning`.
    """

    def __init__(self, session: Session, kinds: Sequence[str], config: SharedBudgetConfig) -> None:
        self.session, self.kinds, self.config = session, tuple(kinds), config
        self._dense: WidthPlanner | None = None
        self._latest: tuple[tuple[Edit, ...], Session, WidthPlanner] | None = None  # after what has gone in depth

    def dense(self) -> WidthPlanner:
        """Return the planner of the network from which nothing has gone.

        Raises:
            ValueError: If no unit of width can go.
        """
        if not self.kinds:
            raise ValueError(f"Expected kinds of width, but got kinds={self.config.kinds}.")
        if self._dense is None:
            self._dense = self._planner(Plan(), self.session)
        return self._dense

    def score(self) -> None:
        """Score the units of the dense network.

        Raises:
            ValueError: If labels are missing.
        """
        planner = self.dense()
        planner.scores(*planner.config.importances)

    def config_after(self, part: Plan, pruned: Session) -> WidthConfig:
        """Return the arguments of planning in width once a part has gone in depth.

        Args:
            part: Plan in depth.
            pruned: Session of the network without what it removes.
        """
        stay = groups_that_stay(pruned.model, pruned.example, self.config, self.kinds, part.edits)
        return self.config.width(self.kinds, stay)

    def after(self, part: Plan, budget: Budget) -> Plan:
        """Return a plan in depth with the one in width that takes the budget of what it leaves.

        What weights take over is fitted to the samples that are not held out, to compare plans.

        Raises:
            ValueError: If the network cannot be pruned so.
        """
        pruned, planner = self._after(part)
        latency = pruned.cost("latency")
        found = planner.decided(budget, clock=latency.on_few if part.edits else latency)
        return part + _plan_of_unmerged(found, pruned)

    def _after(self, part: Plan) -> tuple[Session, WidthPlanner]:
        """Return the session of what a plan in depth leaves, not merged, and the planner of it."""
        if not part.edits:
            return self.session, self.dense()
        if self._latest is None or self._latest[0] != part.edits:
            pruned = self.session.pruned(part.edits, part.tensors)
            self._latest = part.edits, pruned, self._planner(part, pruned)
        return self._latest[1:]

    def _planner(self, part: Plan, pruned: Session) -> WidthPlanner:
        """Return the planner of the network, linears merged; emptied blocks stay, so that the others keep their names.

        Args:
            part: Plan in depth.
            pruned: Session of what it leaves.
        """
        merges = [edit for edit in merge_edits(pruned.model) if isinstance(edit, Merge)]
        merged = pruned.pruned(merges, {}) if merges else pruned
        return WidthPlanner(merged, self.config_after(part, merged))


def _plan_of_unmerged(found: Plan, pruned: Session) -> Plan:
    """Return a plan for a merged network as one for the network as it is, which must run with its edits, too."""
    made_by = found.made_by
    try:
        return plan_for(
            pruned.model,
            found.edits,
            method=made_by.method,
            arguments=made_by.arguments,
            seed=made_by.seed,
            tensors=found.tensors,
            example=pruned.example,
            evidence=found.evidence,
        )
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # a norm that merging folds away reads the stream that was narrowed
        raise ValueError(
            "Expected width to go of a network that also runs before it is merged, but without these units it "
            f"fails: {error}. Ask for a smaller share of depth, or of the cost."
        ) from error
