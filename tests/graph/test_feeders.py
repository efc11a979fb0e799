"""What is left of a network without some units trains as it did: no parameter stays that nothing reads any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from cases.depth.hybrids import SETTINGS, Lending, Lookahead, Recurrent, grown, hybrid
from cases.depth.removal import pruned, removals_of, size
from torch import Tensor, nn

from prunerecover import apply_plan, plan_depth
from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.graph.trace import trace_graph
from prunerecover.model.copies import deep_copy
from prunerecover.model.evaluation import evaluating
from prunerecover.surgery.apply_edits import apply_edits

KINDS = ("block", "attention", "mlp", "layer")
X = torch.rand(2, 5, 4, generator=torch.Generator().manual_seed(0))


def logits(model: nn.Module) -> Tensor:
    found = model(X)
    return found if isinstance(found, Tensor) else found["logits"]


def dead_without_each(model: nn.Module, batch: object, output: Callable[[nn.Module], Tensor]) -> dict[str, set[str]]:
    """By unit, the parameters that stay without it and lose their gradients."""
    removals, trained, found = removals_of(model, batch, KINDS), grown(deep_copy(model), output), dict[str, set[str]]()
    for unit in removals.units:
        left = deep_copy(model)
        try:
            apply_edits(left, removals.edits([unit]))
        except NotRemovable:  # widths of a layer do not meet
            continue
        found[f"{unit.kind} {unit.name}"] = trained & {name for name, _ in left.named_parameters()} - grown(
            left, output
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_hybrids_of_transformers_keep_no_parameter_that_does_not_train(name: str) -> None:
    model, batch = hybrid(name)
    found = dead_without_each(model, batch, lambda left: left(**batch).logits)
    assert found
    assert not {unit: dead for unit, dead in found.items() if dead}


def test_a_branch_goes_whole_though_its_state_is_kept() -> None:
    model, batch = hybrid("Lfm2ForCausalLM")
    units = {unit.name: unit for unit in removals_of(model, batch).units}
    targets = {"model.layers.0.operator_norm", "model.layers.0.conv"}
    assert set(units["model.layers.0.conv"].targets) == targets


@pytest.mark.parametrize("name", ["past", "memory"])
def test_a_state_in_the_output_goes_with_its_branch_or_the_branch_stays(name: str) -> None:
    model = Recurrent(name)
    units = {unit.name for unit in removals_of(model, X).units}
    assert ("mixers.0" in units) == (name == "past")  # what is kept for the next call is no output
    assert "mlps.0" in units
    assert not {unit: dead for unit, dead in dead_without_each(model, X, logits).items() if dead}


def test_a_branch_that_stays_says_what_would_not_train() -> None:
    refused = removals_of(Recurrent("memory"), X).refused
    assert refused["mixers.0.gate+out"] == (
        "'norms.0.weight' and 3 more would get no gradient any more, for only what goes reads it; narrow it."
    )


def test_the_norm_of_two_branches_goes_with_both() -> None:
    batches = [X.repeat(4, 1, 1)]
    plan = plan_depth(Lookahead(), remove={"mlp": 2}, batches=batches, search="one_shot", replace="zero")
    model = Lookahead()
    apply_plan(model, plan)
    with torch.no_grad():
        assert torch.equal(model(X), model.head(model.stem(X)))
    assert [name for name, _ in model.named_parameters()] == ["stem.weight", "stem.bias", "head.weight", "head.bias"]
    assert plan.result is not None
    assert plan.result.params == sum(parameter.numel() for parameter in model.parameters())


def test_the_norm_of_two_branches_stays_with_one() -> None:
    assert not {unit: dead for unit, dead in dead_without_each(Lookahead(), X, logits).items() if dead}


@pytest.mark.parametrize("rank", [8, 1])  # of another shape than what enters: nothing reads what an identity returns
def test_what_a_block_alone_is_handed_goes_with_it(rank: int) -> None:
    removals = removals_of(Lending(rank), X, ("block",))
    (unit, _) = removals.units
    left = pruned(removals, [unit])
    assert {name for name, _ in left.named_parameters() if "0" in name} == set()
    assert unit.params == size(removals.model) - size(left)
    with torch.no_grad():
        model = removals.model
        assert torch.equal(left(X), model.head(model.blocks[1](model.stem(X), model.adapters[1])))  # type: ignore[operator,index]


def test_a_block_stays_if_it_alone_is_handed_what_no_identity_can_replace() -> None:
    removals = removals_of(Lending(rank=None), X, ("block",))
    assert not removals.units
    assert removals.refused["blocks.0"] == (
        "'adapters.0' would get no gradient any more, for only what goes reads it; narrow it."
    )


def test_a_view_of_what_is_overwritten_depends_on_it() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            room = torch.empty_like(x)
            first = room[:, 0]
            room.copy_(self.inner(x))
            return self.outer(first)  # type: ignore[no-any-return]

    graph = trace_graph(Written(), X)
    assert graph.by_module["inner"][0].index in graph.reached_by_output


def test_decoders_keep_nothing_while_they_are_observed() -> None:
    model, batch = hybrid("Lfm2ForCausalLM")
    with evaluating(model):
        assert model(**batch).past_key_values is None
    assert model(**batch).past_key_values is not None
