"""Depth plans: nothing moves while planning, budgets are met, fewer blocks are a standard checkpoint, errors help."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.engine import PLANNED, UNGATED, batch_of, batches_of, build, output_of, unchanged
from cases.models.tiny import DECODERS, GATED
from torch import Tensor, nn

import prunerecover.surgery.saved_cost as saved_cost
from prunerecover.apply import apply_plan
from prunerecover.cost.macs import count_macs
from prunerecover.cost.statistics import Interval
from prunerecover.depth.plan_depth import plan_depth
from prunerecover.depth.units import find_units
from prunerecover.families.describe import describe
from prunerecover.model.batches import as_inputs, call, predictions_of
from prunerecover.plan.budget import Budget
from prunerecover.plan.plan import Plan
from prunerecover.surgery.merging import merge

NEUTRAL = {"gate_gradient", "taylor"}


def loss(model: nn.Module, batch: Any) -> Tensor:
    return -predictions_of(call(model, as_inputs(batch))).log_softmax(-1)[..., 1].mean()


@pytest.mark.parametrize(
    ("name", "search", "training"),
    [
        *((name, "one_shot", name in ("llama", "bert")) for name in ("timm_all", "llama", "gpt2", "bert")),
        ("timm_all", "greedy", True),
        ("llama", "greedy", False),
    ],
)
def test_planning_leaves_the_model_bit_identical(name: str, search: str, training: bool) -> None:
    model = build(name).train(training)
    kinds = {"attention": 1, "block": 1, ("activation" if name in UNGATED else "mlp"): 1}
    with unchanged(model):
        plan_depth(model, remove=kinds, batches=batches_of(name), search=search)


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
    with unchanged(model), pytest.raises(KeyError, match="of the user"):
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


@pytest.mark.parametrize("name", [n for n in DECODERS])
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


@pytest.mark.parametrize(
    ("name", "cost", "replace"),
    [
        *((name, cost, "calibrated") for name in ("timm_all", "llama", "gpt2") for cost in ("macs", "params")),
        ("timm_all", "macs", "zero"),
        ("gpt2", "params", "zero"),
    ],
)
def test_share_of_cost_is_met_by_the_merged_model(name: str, cost: str, replace: str) -> None:
    """Also where fitted maps stay, which cost something themselves."""
    model = build(name)
    plan = plan_depth(model, Budget(**{cost: 0.3}), batches=batches_of(name), replace=replace)
    one = as_inputs(batch_of(name)).select(torch.tensor([0]))
    pruned = copy.deepcopy(model)
    apply_plan(pruned, plan)
    merge(pruned)

    def spent(m: nn.Module) -> int:
        return count_macs(m, one) if cost == "macs" else sum(p.numel() for p in m.parameters())

    assert 1 - spent(pruned) / spent(model) >= 0.3


def test_share_of_cost_takes_the_shortest_prefix() -> None:
    """One unit fewer, in the order of importance per cost, would not be enough."""
    model = build("timm")
    plan = plan_depth(model, Budget(params=0.3), batches=batches_of("timm"), replace="zero", ignore=["blocks.?"])
    units = {u.name: u for u in find_units(model) if u.kind != "block"}
    order = sorted(units, key=lambda n: plan.evidence["importance"][n] / units[n].params)
    gone = [n for names in plan.removed.values() for n in names]
    last = max(order.index(n) for n in gone)
    total = sum(p.numel() for p in model.parameters())
    mlps = {u.block for n, u in units.items() if u.kind == "mlp" and n in order[: last + 1]}
    taken = [units[n] for n in order[:last] if units[n].kind != "activation" or units[n].block not in mlps]
    assert sum(u.params for u in taken) / total < 0.3 <= sum(units[n].params for n in gone) / total


def test_share_of_latency_is_found_by_bisection(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that counts parameters instead of seconds, for a machine that others use."""
    asked: list[float] = []

    class Ratio:
        def __init__(self, value: float) -> None:
            self.ratio = Interval(value, value, value, 0.95)

    def clock(dense: nn.Module, pruned: nn.Module, example: Any, **_: Any) -> Ratio:
        counts = [sum(p.numel() for p in m.parameters()) for m in (dense, pruned)]
        asked.append(counts[1] / counts[0])
        return Ratio(asked[-1])

    monkeypatch.setattr(saved_cost, "latency_ratio", clock)
    model = build("timm")
    with unchanged(model):
        plan = plan_depth(model, Budget(latency=0.4), batches=batches_of("timm"), replace="zero")
    assert min(a for a in asked if 1 - a >= 0.4) <= 0.6
    assert 1 - plan.result.params / sum(p.numel() for p in model.parameters()) > 0
    assert len(asked) <= 6


def test_latency_budget_runs_on_the_real_clock() -> None:
    model = build("timm")
    plan = plan_depth(model, Budget(latency=0.01), batches=batches_of("timm"), replace="zero")
    assert plan.edits


def test_importances_of_several_kinds_are_not_compared() -> None:
    with pytest.raises(ValueError, match="gate gradients and the like differ in scale and must not be compared"):
        plan_depth(build("timm"), Budget(macs=0.2), batches=batches_of("timm"), importance="gate_gradient", loss=loss)


def test_importance_of_one_kind_may_fill_a_share_of_cost() -> None:
    plan = plan_depth(
        build("timm"),
        Budget(params=0.1),
        batches=batches_of("timm"),
        importance="magnitude",
        ignore=["blocks.?", "*.mlp", "*.act"],
    )
    assert set(plan.removed) == {"attention"}


def test_share_that_cannot_be_met_is_refused() -> None:
    with pytest.raises(ValueError, match=r"units that hold 90% of the macs, but all 4 that may go hold"):
        plan_depth(
            build("timm"), Budget(macs=0.9), batches=batches_of("timm"), replace="zero", ignore=["blocks.?", "*.mlp*"]
        )


def test_ratio_rounds_to_units() -> None:
    plan = plan_depth(build("timm"), Budget(ratio={"attention": 0.5, "mlp": 0.3}), batches=batches_of("timm"))
    assert {kind: len(names) for kind, names in plan.removed.items()} == {"attention": 2, "mlp": 1}


def test_units_inside_removed_ones_are_not_counted() -> None:
    """All blocks but one, and one attention: it has to be the one that is left; a removed MLP takes its activation."""
    model = build("timm")
    plan = plan_depth(model, remove={"block": 3, "attention": 1}, batches=batches_of("timm"), replace="zero")
    assert not any(plan.removed["attention"][0].startswith(f"{b}.") for b in plan.removed["block"])
    apply_plan(model, plan)
    plan = plan_depth(build("timm"), remove={"mlp": 3, "activation": 1}, batches=batches_of("timm"))
    mlps = {name.removesuffix(".mlp") for name in plan.removed["mlp"]}
    assert plan.removed["activation"][0].removesuffix(".mlp.act") not in mlps


def test_ignored_units_stay() -> None:
    plan = plan_depth(build("timm"), remove={"attention": 2}, batches=batches_of("timm"), ignore=["blocks.[01].*"])
    assert set(plan.removed["attention"]) == {"blocks.2.attn", "blocks.3.attn"}


def test_nothing_to_remove_gives_the_empty_plan() -> None:
    plan = plan_depth(build("timm"), remove={"attention": 0}, batches=batches_of("timm"))
    assert plan == Plan()


def test_pruned_model_can_be_pruned_again() -> None:
    model = build("timm_all")
    for _ in range(3):
        plan = plan_depth(model, remove={"attention": 1, "activation": 1}, batches=batches_of("timm_all"))
        apply_plan(model, plan)
    assert len(find_units(model, ("attention",))) == 1
    merge(model)
    assert len(find_units(model, ("activation",))) == 1
    apply_plan(model, plan_depth(model, remove={"block": 1}, batches=batches_of("timm_all")))
    assert len(model.blocks) == 3


def test_compiled_model_is_planned_eagerly() -> None:
    model, plain = build("timm"), build("timm")
    model.compile()
    plan = plan_depth(model, remove={"attention": 1, "activation": 1}, batches=batches_of("timm"))
    assert plan == plan_depth(plain, remove={"attention": 1, "activation": 1}, batches=batches_of("timm"))


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


def generator() -> Iterator[Tensor]:
    yield from batches_of("timm")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown kind": ({"remove": {"attn": 1}}, "Expected kinds among block, attention, mlp, activation"),
    "kind of width": ({"remove": {"head": 1}}, "for a plan in depth, but got 'head'"),
    "more than exist": ({"remove": {"attention": 5}}, "at most 4 units of kind 'attention' to remove, but got 5"),
    "all blocks": ({"remove": {"block": 4}}, "at least one block to stay, but all 4 are to be removed"),
    "crowded": (
        {"remove": {"block": 3, "attention": 2}},
        r"enough units outside the other removed ones for \{'attention': 1\} more, but none is left",
    ),
    "crowded in one shot": (
        {"remove": {"block": 3, "attention": 2}, "search": "one_shot"},
        "at most 1 units of kind 'attention' outside the other removed units, but got 2",
    ),
    "ignore matches nothing": (
        {"remove": {"attention": 1}, "ignore": ["block.3"]},
        "ignore to match units such as .*, but 'block.3' matches none",
    ),
    "negative": ({"remove": {"attention": -1}}, "a whole number of units >= 0 for 'attention', but got -1"),
    "no budget": ({}, "either a budget or remove="),
    "two budgets": ({"remove": {"attention": 1}, "budget": Budget(macs=0.1)}, "and not both"),
    "empty loader": ({"remove": {"attention": 1}, "batches": []}, "at least one calibration batch, but the loader was"),
    "importance": (
        {"remove": {"attention": 1}, "importance": "luck"},
        "importance to be one of output_divergence, gate_gradient, .*, but got 'luck'",
    ),
    "replace": ({"remove": {"attention": 1}, "replace": "magic"}, "replace to be one of calibrated, zero, identity"),
    "search": ({"remove": {"attention": 1}, "search": "beam"}, "search to be one of one_shot, greedy, but got 'beam'"),
    "no loss": (
        {"remove": {"attention": 1}, "importance": "taylor"},
        r"loss=f\(model, batch\) for importance='taylor'",
    ),
    "greedy by cost": (
        {"budget": Budget(macs=0.1), "search": "greedy"},
        r"for search='greedy', but got 'output_divergence' and \{'macs': 0\.1\}\. Use search='one_shot'",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_explained_and_changes_nothing(case: str) -> None:
    arguments, message = BAD[case]
    model = build("timm").train()
    with unchanged(model), pytest.raises(ValueError, match=message):
        plan_depth(model, **{"batches": batches_of("timm"), **arguments})


def test_batch_of_unknown_form_is_explained() -> None:
    with pytest.raises(TypeError, match="each batch to be a tensor, a tuple .* but got str"):
        plan_depth(build("timm"), remove={"attention": 1}, batches=["image.png"])


def test_consumed_generator_is_explained() -> None:
    batches = generator()
    list(batches)
    with pytest.raises(ValueError, match="a generator that was already consumed is empty"):
        plan_depth(build("timm"), remove={"attention": 1}, batches=batches)


def test_generator_is_read_once() -> None:
    plan = plan_depth(build("timm"), remove={"attention": 1}, batches=generator())
    assert plan == plan_depth(build("timm"), remove={"attention": 1}, batches=batches_of("timm"))


def test_outputs_that_are_nan_are_refused() -> None:
    model = build("timm")
    with torch.no_grad():
        model.head.bias.fill_(float("nan"))
    with pytest.raises(ValueError, match="finite importances from 'output_divergence', but 4 of 4 are not"):
        plan_depth(model, remove={"attention": 1}, batches=batches_of("timm"), replace="zero")


def test_model_without_units_lists_the_supported_families() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    with unchanged(model), pytest.raises(ValueError, match=r"timm VisionTransformer, transformers Llama, .*Sequential"):
        plan_depth(model, remove={"attention": 1}, batches=batches_of("timm"))


@pytest.mark.parametrize("name", GATED)
def test_gated_feed_forward_says_why_it_has_no_activation(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"to have removable activations, but its MLP is gated.*Use 'attention' or 'mlp'"
    ):
        plan_depth(build(name), remove={"activation": 1}, batches=batches_of(name))


def test_layout_is_read_from_the_live_model() -> None:
    model = build("timm")
    apply_plan(model, plan_depth(model, remove={"block": 1}, batches=batches_of("timm")))
    assert len(describe(model).blocks) == 3
