"""`Plan.first`: one search gives plans for all depths; folded maps remain for complete runs of blocks."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.engine import batch_of, batches_of, build, output_of, plan_of
from cases.models.tiny import tiny_llama
from torch import Tensor, nn

from prunerecover import Plan, PlanSet, apply_plan, plan_depth
from prunerecover.model.hashing import tensors_hash
from prunerecover.plan.edits import Fold, Refit, Remove
from prunerecover.plan.evidence import DepthEvidence, RemovalStep
from prunerecover.plan.records import Result
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.merging import block_removals
from prunerecover.surgery.provenance import plan_for


@pytest.mark.parametrize(("name", "count"), [("timm", 1), ("qwen2", 2)])
def test_the_first_units_of_a_greedy_plan_are_the_plan_for_fewer(name: str, count: int) -> None:
    model = build(name)
    first = plan_of(name, model, remove={"block": 3}, search="greedy", replace="zero").first(count)
    fewer = plan_of(name, model, remove={"block": count}, search="greedy", replace="zero")
    assert (first.edits, first.result) == (fewer.edits, fewer.result)
    apply_plan(model, first)
    assert tensors_hash(model) == first.result.tensors
    assert sum(p.numel() for p in model.parameters()) == first.result.params


def test_units_that_leave_something_stay_together() -> None:
    plan = plan_of("timm", build("timm"), remove={"activation": 2})
    with pytest.raises(ValueError, match="Expected a plan without replacements and with a known order of removal"):
        plan.first(1)


LAYERS = "model.layers"


def folding(order: tuple[int, ...], runs: dict[int, int]) -> tuple[nn.Module, Plan]:
    """Return a Llama and a plan with removed blocks in order, and a map before each run: {first: last}."""
    model = tiny_llama(num_hidden_layers=6)
    generator, tensors = torch.Generator().manual_seed(0), dict[str, Tensor]()
    folds = []
    for number, (first, last) in enumerate(runs.items()):
        key, into = f"e{number}.weight", f"{LAYERS}.{first - 1}.mlp.down_proj"
        tensors[key] = torch.eye(32) + 0.3 * torch.randn(32, 32, generator=generator)
        folds.append(Fold(unit=f"{LAYERS}.{last}", into=into, tensors=(key,)))
    steps = [
        RemovalStep(unit=f"{LAYERS}.{i}", config={"num_hidden_layers": 5 - n}, result=Result())
        for n, i in enumerate(order)
    ]
    edits = [*folds, *block_removals(model, order)]
    evidence = DepthEvidence(order=tuple(steps)).to_dict()
    return model, plan_for(model, edits, method="by hand", tensors=tensors, evidence=evidence)


def folds_of(plan: Plan) -> list[str]:
    return [edit.unit for edit in plan.edits if isinstance(edit, Fold)]


def test_the_number_of_units_is_one_that_the_plan_has() -> None:
    _, plan = folding((5, 1), {})
    assert plan.first(2) is plan
    assert plan.first(0) == Plan()
    with pytest.raises(ValueError, match="Expected 0 to 2 units, as many as the plan removes, but got 3"):
        plan.first(3)
    with pytest.raises(TypeError, match="Expected a whole number of units, but got 1.5"):
        plan.first(1.5)  # type: ignore[arg-type]


def test_maps_of_whole_runs_stay() -> None:
    _, plan = folding((5, 1, 2), {1: 2, 5: 5})
    assert folds_of(plan.first(3)) == [f"{LAYERS}.2", f"{LAYERS}.5"]
    assert folds_of(plan.first(2)) == [f"{LAYERS}.5"]
    assert folds_of(plan.first(1)) == [f"{LAYERS}.5"]


def test_maps_of_runs_in_part_are_left_out() -> None:
    _, plan = folding((1, 2), {1: 2})
    first = plan.first(1)
    assert (folds_of(first), first.needed_tensors, dict(first.tensors)) == ([], (), {})


def test_a_map_that_stays_is_folded() -> None:
    model, plan = folding((5, 1, 2), {1: 2, 5: 5})
    first, by_hand = copy.deepcopy(model), copy.deepcopy(model)
    apply_plan(first, plan.first(2))
    linear = by_hand.get_submodule(f"{LAYERS}.4.mlp.down_proj")
    linear.weight.data = plan.tensors["e1.weight"] @ linear.weight.data
    apply_edits(by_hand, block_removals(by_hand, [1, 5]))
    batch = batch_of("llama")
    torch.testing.assert_close(output_of(first, batch), output_of(by_hand, batch), rtol=1e-4, atol=1e-5)


def test_tensors_are_renamed_for_their_edits(tmp_path) -> None:
    _, plan = folding((5, 1, 2), {1: 2, 5: 5})
    first = plan.first(2)
    assert first.needed_tensors == tuple(first.tensors) == ("e0.weight",)
    assert torch.equal(first.tensors["e0.weight"], plan.tensors["e1.weight"])
    assert Plan.load(first.save(tmp_path / "plan.json")) == first


def test_routes_fold_nothing() -> None:
    _, plan = folding((5, 1), {5: 5})
    match = "Expected plans that leave the shared weights as they are, but 'a' changes '.*4.mlp.down_proj'. Plan"
    with pytest.raises(ValueError, match=match):
        PlanSet(names=("a",), plans=(plan,))


def test_a_searched_plan_leaves_out_the_layers_fitted_for_all_units() -> None:
    plan = plan_depth(build("llama"), remove={"block": 2}, batches=batches_of("llama", n=16), search="greedy")
    order = [step["unit"] for step in plan.evidence["order"]]
    first = plan.first(1)
    assert [edit.unit for edit in first.edits if isinstance(edit, Remove)] == order[:1]
    assert not any(isinstance(edit, Refit) for edit in first.edits)
