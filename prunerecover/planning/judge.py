"""Judge of whole plans: the divergence and the user's score of the pruned network, each measured once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

from torch import nn

from prunerecover.display.progress import progress
from prunerecover.model.copies import deep_copy
from prunerecover.model.evaluation import ordinary_arithmetic
from prunerecover.plan.plan import Plan
from prunerecover.planning.kept import TUNED
from prunerecover.planning.score import Score, score_of
from prunerecover.recovery.reconstruction import fit_layers, made_for, reconstructible
from prunerecover.session.pruned_output import PrunedOutput, unseen_judge_of
from prunerecover.session.session import Session
from prunerecover.store.search_store import SearchStore

T = TypeVar("T")


class PlanJudge:
    """Judge of whole plans of a session.

    Args:
        session: Network and samples.
        store: Store of the search.
    """

    def __init__(self, session: Session, store: SearchStore) -> None:
        self.session, self.store = session, store

    @ordinary_arithmetic()
    def divergence(self, plan: Plan) -> float | None:
        """Return the output divergence of a plan's network on unseen or held-out samples; None: not comparable.

        Args:
            plan: Plan.
        """
        if not self.session.output.comparable:
            return None
        return self._measured("divergence", (), [plan], self._divergence)[0]

    @ordinary_arithmetic()
    def scores(self, plans: Sequence[Plan], score: Score) -> list[float]:
        """Return the user's scores of the networks of plans; the ranks of a search share the plans.

        Args:
            plans: Plans.
            score: Function of the user, called with a copy of each network.
        """

        def measure(plan: Plan) -> float:
            return score_of(deep_copy(self.network(plan)), score, self.session.seed)

        with progress("scoring plans", len(plans)) as advance:
            return self._measured("score", (score,), plans, measure, advance)

    @ordinary_arithmetic()
    def network(self, plan: Plan) -> nn.Module:
        """Return the pruned network; tensors may be shared with the model.

        A network with BatchNorm is reconstructed if the divergence falls, or the outputs are not comparable.

        Args:
            plan: Plan.
        """
        return self._nearest(plan)[0]

    @cached_property
    def _output(self) -> PrunedOutput:
        return unseen_judge_of(self.session.model, self.session.samples)

    def _nearest(self, plan: Plan) -> tuple[nn.Module, float]:
        """Return the network with its divergence, NaN if the outputs are not comparable."""
        comparable = self.session.output.comparable
        network = self._output.pruned(plan.edits, plan.tensors, to_read=True)
        found = self._output.divergence_of(network) if comparable else math.nan
        if not (made_for(network) and reconstructible(plan)):
            return network, found
        fitted = deep_copy(network)  # which may share weights with the model
        fit_layers(fitted, self.session.model, plan, self.session.samples.fit, seed=self.session.seed)
        reached = self._output.divergence_of(fitted) if comparable else math.nan
        return (fitted, reached) if reached < found or not comparable else (network, found)

    def _divergence(self, plan: Plan) -> float | None:
        found = self._nearest(plan)[1]
        return found if math.isfinite(found) else None

    def _measured(
        self,
        what: str,
        by: tuple[object, ...],
        plans: Sequence[Plan],
        measure: Callable[[Plan], T],
        advance: Callable[[], None] = lambda: None,
    ) -> list[T]:
        """Return a measure of plans, measured only where the store has none.

        Args:
            what: Name of the measure.
            by: Further values that decide the measure.
            plans: Plans, known by their edits.
            measure: Function from a plan to the measure.
            advance: Function called after each plan.
        """
        names = [(*by, TUNED, plan.made_by.method, *(str(edit) for edit in plan.edits)) for plan in plans]
        return self.store.results(what, names, lambda n: measure(plans[n]), advance)
