"""Plans of depth, of width and of both, compared by the caller's short recoveries."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from cases.planning.networks import cnn, images, vit

from prunerecover import Budget, Plan, plan_pruning
from prunerecover.boundary.search import Trial
from prunerecover.plan.evidence import SplitEvidence

THIRD = Budget(macs=0.3)
KINDS = ("attention", "mlp", "neuron")


def neurons(plan: Plan) -> int:
    return len(plan.removed.get("neuron", ()))


@pytest.mark.slow
def test_most_accurate_candidate_is_planned_whatever_its_output_is() -> None:
    """An evaluation in favour of most, or fewest, removed neurons gets that plan."""
    asked: list[list[Trial]] = []

    def evaluate(trials: Sequence[Trial]) -> list[float]:
        asked.append(list(trials))
        return [sign * neurons(trial.plan) for trial in trials]

    for sign in (1, -1):
        asked.clear()
        plan = plan_pruning(vit(), THIRD, batches=images(4), kinds=KINDS, evaluate=evaluate, seed=3)
        found = SplitEvidence.of(plan.evidence)
        trials = [trial for some in asked for trial in some]
        assert {0.0, 1.0} <= {one.depth for one in found.splits}, "either alone, and both together"
        assert len(found.splits) == 3
        assert [one.accuracy for one in found.splits] == [sign * neurons(trial.plan) for trial in trials]
        assert all(one.divergence is None for one in found.splits)
        assert {trial.seed for trial in trials} == {3}
        assert [len(some) for some in asked] == [3], "they do not depend on one another"
        recovered = next(trial.plan for trial in trials if trial.plan.edits == plan.edits)
        assert all(recovered.tensors[key] is value for key, value in plan.tensors.items()), "what is returned"
        assert neurons(plan) == max(sign * neurons(trial.plan) for trial in trials) * sign


def test_where_one_alone_can_go_nothing_is_recovered() -> None:
    def evaluate(trials: Sequence[Trial]) -> list[float]:
        raise AssertionError("there is nothing to compare")

    plan = plan_pruning(cnn(), THIRD, batches=images(), evaluate=evaluate)
    assert SplitEvidence.of(plan.evidence).splits[0].accuracy is None


@pytest.mark.slow
def test_as_many_accuracies_as_trials() -> None:
    with pytest.raises(ValueError, match="Expected evaluate to return one accuracy per trial, 3 in all, but got 1"):
        plan_pruning(vit(depth=2), THIRD, batches=images(1), kinds=KINDS, evaluate=lambda _: [50.0])
