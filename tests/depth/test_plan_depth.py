"""Depth plans: nothing moves while planning, a seed gives one plan, fewer blocks are a standard checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.engine import batch_of, batches_of, build, loss, output_of, unchanged
from torch import Tensor, nn

from prunerecover.apply import apply_plan
from prunerecover.plan.plan import Plan
from prunerecover.planning.plan_depth import plan_depth
from prunerecover.sites.find import find_units
from prunerecover.surgery.merging import merge

NEUTRAL = {"gate_gradient", "taylor"}
BOTH = {"attention": 1, "activation": 1}


@pytest.fixture(scope="module")
def usual() -> Plan:
    return plan_depth(build("timm"), remove=BOTH, batches=batches_of("timm"))


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "compiled": nn.Module.compile,
    "frozen": lambda model: model.requires_grad_(False),
    "in another random state": lambda model: torch.manual_seed(1),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_model_is_planned_as_usual_when_it_is(how: str, usual: Plan) -> None:
    model = build("timm")
    CHANGES[how](model)
    assert plan_depth(model, remove=BOTH, batches=batches_of("timm")) == usual
    apply_plan(model, usual)
    assert any(p.requires_grad for p in model.parameters()) == (how != "frozen")


@pytest.mark.parametrize("mode", [torch.inference_mode, partial(torch.autocast, "cpu", torch.bfloat16)])
def test_modes_around_planning_do_not_matter(mode: Callable[[], Any], usual: Plan) -> None:
    model = build("timm")
    with mode():
        assert plan_depth(model, remove=BOTH, batches=[b + 0 for b in batches_of("timm")]) == usual


@pytest.mark.parametrize("importance", ["gate_gradient", "taylor", "magnitude", "block_influence", "random"])
def test_every_importance_plans(importance: str) -> None:
    model = build("timm_all").train()
    chosen_loss = loss if importance in NEUTRAL else None
    with unchanged(model):
        how = {"importance": importance, "loss": chosen_loss}
        plan = plan_depth(model, remove={"attention": 2}, batches=batches_of("timm_all"), **how)
    scores = plan.evidence["importance"]
    assert set(plan.removed["attention"]) == set(sorted(scores, key=scores.__getitem__)[:2])
    assert plan.made_by.method == f"depth/{importance}"


@pytest.mark.parametrize("position", [0, 40, 150])
def test_model_is_bit_identical_after_an_exception_anywhere(position: int) -> None:
    """A forward pass that fails in the middle of the walk, with stand-ins in place and blocks skipped."""
    model = build("timm_all").train()
    calls = 0
    own = model.norm.forward

    def failing(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > position:
            raise KeyError("of the user")
        return own(x)

    model.norm.forward = failing
    kinds = {"attention": 4, "activation": 4, "block": 2}
    with unchanged(model), pytest.raises((KeyError, ValueError), match="of the user"):  # at first it is explained
        plan_depth(model, remove=kinds, batches=batches_of("timm_all", count=8), search="greedy")


@pytest.mark.slow
def test_same_seed_gives_the_same_plan_and_other_seeds_hold_out_others() -> None:
    model = build("timm_all")
    plans = [plan_depth(model, remove=BOTH, batches=batches_of("timm_all"), seed=seed) for seed in (0, 0, 1)]
    assert plans[0] == plans[1]
    assert plans[0].evidence["importance"] != plans[2].evidence["importance"]


@pytest.mark.parametrize("name", ["gpt2", "hf_vit"])
def test_removed_blocks_leave_a_standard_checkpoint(name: str, tmp_path: Path) -> None:
    model, batch = build(name), batch_of(name)
    apply_plan(model, plan_depth(model, remove={"block": 2}, batches=batches_of(name)))
    assert model.config.num_hidden_layers == 2
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(output_of(model, batch), output_of(again, batch))


@pytest.mark.slow
def test_pruned_model_can_be_pruned_again() -> None:
    model = build("timm_all")
    for _ in range(3):
        apply_plan(model, plan_depth(model, remove=BOTH, batches=batches_of("timm_all")))
    assert len(find_units(model, kinds=("attention",))) == 1
    merge(model)
    assert len(find_units(model, kinds=("activation",))) == 1
    apply_plan(model, plan_depth(model, remove={"block": 1}, batches=batches_of("timm_all")))
    assert len(model.blocks) == 3
