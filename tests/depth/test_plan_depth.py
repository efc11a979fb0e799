"""Depth plans: nothing moves while planning, a seed gives one plan, fewer blocks are a standard checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases.engine import PLANNED, UNGATED, batch_of, batches_of, build, loss, output_of, unchanged
from cases.models.tiny import DECODERS
from cases.sampling import one_in
from torch import Tensor

from prunerecover.apply import apply_plan
from prunerecover.cost.macs import count_macs
from prunerecover.families.describe import describe
from prunerecover.model.batches import as_inputs
from prunerecover.planning.plan_depth import plan_depth
from prunerecover.sites.find import find_units
from prunerecover.surgery.merging import merge

NEUTRAL = {"gate_gradient", "taylor"}


@pytest.mark.parametrize(
    ("name", "search", "training"),
    one_in(
        2,
        [
            *((name, "one_shot", name in ("llama", "bert")) for name in ("timm_all", "llama", "gpt2", "bert")),
            ("timm_all", "greedy", True),
            ("llama", "greedy", False),
        ],
    ),
)
def test_planning_leaves_the_model_bit_identical(name: str, search: str, training: bool) -> None:
    model = build(name).train(training)
    kinds = {"attention": 1, "block": 1, ("activation" if name in UNGATED else "mlp"): 1}
    with unchanged(model):
        plan_depth(model, remove=kinds, batches=batches_of(name), search=search)


@pytest.mark.slow
def test_autocast_around_planning_does_not_matter() -> None:
    model, batches = build("timm"), batches_of("timm")
    plan = plan_depth(model, remove={"attention": 1, "activation": 1}, batches=batches)
    with torch.autocast("cpu", torch.bfloat16):
        assert plan_depth(model, remove={"attention": 1, "activation": 1}, batches=batches) == plan


@pytest.mark.parametrize("importance", ["gate_gradient", "taylor", "magnitude", "block_influence", "random"])
def test_every_importance_plans(importance: str) -> None:
    model = build("timm_all").train()
    chosen_loss = loss if importance in NEUTRAL else None
    with unchanged(model):
        plan = plan_depth(
            model, remove={"attention": 2}, batches=batches_of("timm_all"), importance=importance, loss=chosen_loss
        )
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
    plans = [
        plan_depth(model, remove={"attention": 2, "activation": 2}, batches=batches_of("timm_all"), seed=seed)
        for seed in (0, 0, 1)
    ]
    assert plans[0] == plans[1]
    assert plans[0].evidence["importance"] != plans[2].evidence["importance"]


def test_global_random_state_does_not_matter() -> None:
    model = build("timm")
    plans = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        plans.append(plan_depth(model, remove={"attention": 1, "activation": 1}, batches=batches_of("timm")))
    assert plans[0] == plans[1]


@pytest.mark.parametrize("name", PLANNED)
def test_result_tells_what_apply_leaves(name: str) -> None:
    model = build(name)
    plan = plan_depth(model, remove={"attention": 1, "mlp": 1, "block": 1}, batches=batches_of(name))
    one = as_inputs(batch_of(name)).select(torch.tensor([0]))
    apply_plan(model, plan)
    assert plan.result.params == sum(p.numel() for p in model.parameters())
    assert plan.result.macs == count_macs(model, one)
    assert len(plan.evidence["importance"]) == 12


@pytest.mark.parametrize("name", one_in(3, DECODERS))
def test_removed_blocks_leave_a_standard_checkpoint(name: str, tmp_path: Path) -> None:
    model = build(name)
    apply_plan(model, plan_depth(model, remove={"block": 2}, batches=batches_of(name)))
    assert model.config.num_hidden_layers == 2
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    batch = batch_of(name)
    assert torch.equal(output_of(model, batch), output_of(again, batch))
    prompt = batch["input_ids"][:, :5]
    generated = [
        m.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False, use_cache=cached)
        for m in (model, again)
        for cached in (True, False)
    ]
    assert all(torch.equal(generated[0], other) for other in generated[1:])


@pytest.mark.parametrize("name", ["bert", "hf_vit"])
def test_encoders_leave_a_standard_checkpoint_too(name: str, tmp_path: Path) -> None:
    model = build(name)
    apply_plan(model, plan_depth(model, remove={"block": 1}, batches=batches_of(name)))
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(output_of(model, batch_of(name)), output_of(again, batch_of(name)))


@pytest.mark.slow
def test_pruned_model_can_be_pruned_again() -> None:
    model = build("timm_all")
    for _ in range(3):
        plan = plan_depth(model, remove={"attention": 1, "activation": 1}, batches=batches_of("timm_all"))
        apply_plan(model, plan)
    assert len(find_units(model, kinds=("attention",))) == 1
    merge(model)
    assert len(find_units(model, kinds=("activation",))) == 1
    apply_plan(model, plan_depth(model, remove={"block": 1}, batches=batches_of("timm_all")))
    assert len(model.blocks) == 3


def test_compiled_model_is_planned_eagerly() -> None:
    model, plain = build("timm"), build("timm")
    model.compile()
    plan = plan_depth(model, remove={"attention": 1, "activation": 1}, batches=batches_of("timm"))
    assert plan == plan_depth(plain, remove={"attention": 1, "activation": 1}, batches=batches_of("timm"))


@pytest.mark.slow
def test_frozen_model_is_planned_like_a_trainable_one() -> None:
    frozen = build("timm").requires_grad_(False)
    plan = plan_depth(frozen, remove={"activation": 2}, batches=batches_of("timm"))
    assert plan == plan_depth(build("timm"), remove={"activation": 2}, batches=batches_of("timm"))
    apply_plan(frozen, plan)
    assert not any(p.requires_grad for p in frozen.parameters())


def test_planning_inside_inference_mode() -> None:
    model = build("timm")
    outside = plan_depth(model, remove={"activation": 1}, batches=batches_of("timm"))
    with torch.inference_mode():
        inside = plan_depth(model, remove={"activation": 1}, batches=[b + 0 for b in batches_of("timm")])
    assert inside == outside


def test_layout_is_read_from_the_live_model() -> None:
    model = build("timm")
    apply_plan(model, plan_depth(model, remove={"block": 1}, batches=batches_of("timm")))
    assert len(describe(model).blocks) == 3
