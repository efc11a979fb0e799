"""Width for what depth leaves of a budget.

It is planned on the network without the units of depth, merged as it will be: neurons between two linears that become
one save nothing. The network itself is pruned for as long, for a loss may know it by reference (a training step does),
and is bit for bit as it was afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from prunerecover.model.batches import ModelInputs
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Edit, Merge
from prunerecover.plan.plan import Plan
from prunerecover.shared_budget.arguments import SharedBudgetConfig
from prunerecover.shared_budget.ignored import groups_that_stay
from prunerecover.surgery.apply_edits import edited
from prunerecover.surgery.merging import merge_edits
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.arguments import WidthConfig
from prunerecover.width.planner import WidthPlanner


class RestInWidth:
    """Plans in width after plans in depth, and computes once what those after one plan share.

    Args:
        model: Unwrapped.
        batches: Labelled ones.
        first: The first of them, without labels, on the model's device.
        kinds: Of units of width.
        config: All other arguments of `plan_pruning`.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Any],
        first: ModelInputs,
        kinds: Sequence[str],
        config: SharedBudgetConfig,
    ) -> None:
        self.model, self.batches, self.kinds, self.config = model, batches, tuple(kinds), config
        self._first = first
        self._dense: WidthPlanner | None = None
        self._latest: tuple[tuple[Edit, ...], WidthPlanner] | None = None  # after what has gone in depth

    def dense(self) -> WidthPlanner:
        """Return the planner of the network from which nothing has gone.

        Raises:
            ValueError: If no unit of width can go.
        """
        if not self.kinds:
            raise ValueError(f"Expected kinds of width, but got kinds={self.config.kinds}.")
        if self._dense is None:
            with self._merged():
                self._dense = self._planner(Plan())
        return self._dense

    def score(self) -> None:
        """Score the units of the dense network.

        Raises:
            ValueError: If labels are missing.
        """
        planner = self.dense()
        with self._merged():
            planner.scores(*planner.config.importances)

    def config_after(self, part: Plan) -> WidthConfig:
        """Return the arguments of planning in width, while the network is pruned by a plan in depth."""
        stay = groups_that_stay(self.model, self._first, self.config, self.kinds, part.edits)
        return self.config.width(self.kinds, stay)

    def after(self, part: Plan, budget: Budget) -> Plan:
        """Return a plan in depth with the one in width that takes the budget of what it leaves.

        What weights take over is fitted to the samples that are not held out, to compare plans.

        Raises:
            ValueError: If the network cannot be pruned so.
        """
        self.dense()
        with edited(self.model, part.edits, part.tensors):
            with self._merged():
                found = self._planner_after(part).plan(budget, in_part=bool(part.edits), finished=False)
            return part + self._plan_of_unmerged(found)

    def _planner_after(self, part: Plan) -> WidthPlanner:
        if not part.edits:
            return self.dense()
        if self._latest is None or self._latest[0] != part.edits:
            self._latest = part.edits, self._planner(part)
        return self._latest[1]

    def _planner(self, part: Plan) -> WidthPlanner:
        return WidthPlanner(self.model, batches=self.batches, config=self.config_after(part))

    def _plan_of_unmerged(self, found: Plan) -> Plan:
        """Return a plan for the merged network as one for the network as it is, which must run with its edits, too."""
        made_by = found.made_by
        try:
            return plan_for(
                self.model,
                found.edits,
                method=made_by.method,
                arguments=made_by.arguments,
                seed=made_by.seed,
                tensors=found.tensors,
                example=self._first.select(torch.tensor([0])),
                evidence=found.evidence,
            )
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # a norm that merging folds away reads the stream that was narrowed
            raise ValueError(
                "Expected width to go of a network that also runs before it is merged, but without these units it "
                f"fails: {error}. Ask for a smaller share of depth, or of the cost."
            ) from error

    @contextmanager
    def _merged(self) -> Iterator[None]:
        """Have linears merged inside a `with` block; emptied blocks stay, so that the others keep their names."""
        with edited(self.model, [edit for edit in merge_edits(self.model) if isinstance(edit, Merge)]):
            yield
