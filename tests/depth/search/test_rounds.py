"""The search "rounds" takes what a loop by hand takes: score what is left on the pruned network, remove the least."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from cases.depth.removal import pruned, removals_of, size
from torch import nn
from torch.nn import functional as F

from prunerecover import Budget, Plan, plan_depth
from prunerecover.depth.layers.removals import Removals
from prunerecover.plan.edits import Bypass
from prunerecover.plan.units import Unit

SAMPLES = torch.randn(32, 12, generator=torch.Generator().manual_seed(1))
WIDTHS = (12, 20, 16, 24, 12, 20, 5)


def chain(seed: int, widths: Sequence[int]) -> nn.Sequential:
    """Linears with ReLU between them."""
    torch.manual_seed(seed)
    pairs = zip(widths[:-2], widths[1:-1], strict=True)
    parts = (part for before, after in pairs for part in (nn.Linear(before, after), nn.ReLU()))
    model = nn.Sequential(*parts, nn.Linear(*widths[-2:])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)  # else layers hardly change anything
    return model


def order(plan: Plan) -> list[str]:
    return [edit.unit for edit in plan.edits if isinstance(edit, Bypass)]


def in_rounds(units: Sequence[Unit], count: int, score: Callable[[list[Unit]], float]) -> list[str]:
    """Remove the unit with which the score of all that is gone is least, `count` times."""
    gone: list[Unit] = []
    while len(gone) < count:
        gone.append(min((unit for unit in units if unit not in gone), key=lambda unit: score([*gone, unit])))
    return [unit.name for unit in gone]


def without(model: nn.Sequential, gone: Sequence[Unit]) -> nn.Sequential:
    """The chain without some linears and the ReLU behind each, cut by hand."""
    skipped = {int(unit.name) + i for unit in gone for i in (0, 1)}
    return nn.Sequential(*(part for i, part in enumerate(model) if i not in skipped))


def divergence(model: nn.Module, other: nn.Module) -> float:
    with torch.no_grad():
        p, q = (network(SAMPLES).double().log_softmax(-1) for network in (model, other))
    return float(F.kl_div(q, p, log_target=True, reduction="batchmean"))


@pytest.mark.parametrize("seed", range(2))
def test_by_divergence_it_takes_the_layer_that_is_missed_least_of_those_left(seed: int) -> None:
    model = chain(seed, (12,) * 7 + (5,))
    plan = plan_depth(model, remove={"layer": 4}, batches=SAMPLES.split(8), search="rounds", replace="identity")
    units = removals_of(model, SAMPLES, ("layer",)).units
    assert order(plan) == in_rounds(units, 4, lambda gone: divergence(model, without(model, gone)))


def absolute(model: nn.Module) -> float:
    return sum(float(parameter.detach().double().abs().sum()) for parameter in model.parameters())


def lost_per_cost(removals: Removals) -> Callable[[list[Unit]], float]:
    """Absolute values of the weights that leave with the last unit, by the parameters that go with it alone."""

    def score(gone: list[Unit]) -> float:
        *before, last = gone
        lost = absolute(pruned(removals, before)) - absolute(pruned(removals, gone))
        return lost / (size(removals.model) - size(pruned(removals, [last])))

    return score


@pytest.mark.slow
def test_by_magnitude_it_counts_the_weights_that_are_left_per_saved_cost() -> None:
    differ = 0
    for seed in range(2):
        model = chain(seed, WIDTHS)
        settings = {"budget": Budget(params=0.5), "batches": [SAMPLES], "importance": "magnitude", "kinds": "layer"}
        plan, once = (plan_depth(model, search=search, **settings) for search in ("rounds", "one_shot"))
        removals = removals_of(model, SAMPLES, ("layer",))
        assert order(plan) == in_rounds(removals.units, len(order(plan)), lost_per_cost(removals))
        units = {unit.name: unit for unit in removals.units}
        sizes = [size(pruned(removals, [units[name] for name in order(plan)[:n]])) for n in (-1, None)]
        assert sizes[1] <= 0.5 * size(model) < sizes[0]
        differ += order(plan) != order(once)
    assert differ  # widths that went with a layer make the next ones lighter
