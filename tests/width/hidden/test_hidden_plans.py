"""Plans for narrower residual streams: budgets, compensation, configs, optimizers, and further kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.decoders import DECODERS
from cases.models.tiny import BUILD, tiny_images, tiny_inputs, tiny_timm
from cases.sampling import first

from prunerecover import Budget, apply_plan, load_pruned, plan_width, save_pruned
from prunerecover.checkpoint.pruned_folder import standard_class
from prunerecover.cost.macs import count_macs

IMAGES = tiny_images(16, seed=3)
BATCHES = [(IMAGES, torch.arange(16) % 5)]
HIDDEN = ("hidden",)
QUICK: Any = {"importance": "magnitude", "replace": "zero"}


def text(name: str) -> list[dict[str, torch.Tensor]]:
    ids = tiny_inputs(name, 8)
    return [{**ids, "labels": ids["input_ids"]}]


def built(name: str) -> Any:
    return (BUILD[name] if name in BUILD else DECODERS[name].build)()


def halved(name: str, **settings: Any) -> tuple[Any, Any]:
    """Return a language model with half of its hidden size, and the plan."""
    model = built(name)
    plan = plan_width(model, Budget(remove={"hidden": 16}), batches=text(name), kinds=HIDDEN, **settings)
    apply_plan(model, plan)
    return model, plan


@pytest.mark.parametrize("budget", [Budget(macs=0.3), Budget(params=0.3)])
def test_a_budget_is_met_by_less_than_a_feature(budget: Budget) -> None:
    def costs() -> tuple[int, int]:
        return count_macs(model, IMAGES[:1]), sum(p.numel() for p in model.parameters())

    model = tiny_timm()
    dense = costs()
    plan = plan_width(model, budget, batches=BATCHES, kinds=HIDDEN, **QUICK)
    apply_plan(model, plan)
    assert (plan.result.macs, plan.result.params) == costs()
    number = 0 if budget.macs else 1
    assert 0.7 - 1 / 32 < costs()[number] / dense[number] <= 0.7


@pytest.mark.slow
def test_what_features_count_for_beside_other_kinds_is_tried(tmp_path: Path) -> None:
    model = tiny_timm()
    plan = plan_width(model, Budget(macs=0.5), batches=BATCHES, kinds=("head", "neuron", "hidden"))
    apply_plan(model, plan)
    assert plan.result.macs == count_macs(model, IMAGES[:1]) <= 0.5 * count_macs(tiny_timm(), IMAGES[:1])
    assert set(plan.evidence["rates"]) == {"head", "neuron", "hidden"}
    again = load_pruned(save_pruned(model, plan, tmp_path / "pruned"), tiny_timm())
    assert torch.equal(again.eval()(IMAGES), model(IMAGES))


def test_dead_features_go_first() -> None:
    """Features with hardly any writers or readers have the lowest scores."""
    model = tiny_timm()
    dead = [3, 17, 30]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.shape[-1] == 32 and name.endswith(("qkv.weight", "fc1.weight", "head.weight")):
                parameter[:, dead] *= 1e-4
    plan = plan_width(model, Budget(remove={"hidden": 3}), batches=BATCHES, kinds=HIDDEN)
    assert plan.removed == {"hidden": tuple(f"patch_embed.proj[{number}]" for number in dead)}


def test_weights_take_over_for_what_goes() -> None:
    """Copies of other features can be removed exactly, but for their part in the norms' statistics."""
    changes = {}
    for replace in ("zero", "calibrated"):
        model = tiny_timm()
        dense = model(IMAGES)
        plan = plan_width(model, Budget(remove={"hidden": 8}), batches=BATCHES, kinds=HIDDEN, replace=replace)
        apply_plan(model, plan)
        changes[replace] = (model(IMAGES) - dense).square().mean()
        assert bool(plan.tensors) == (replace == "calibrated")
    assert changes["calibrated"] < changes["zero"]


@pytest.mark.slow
def test_tied_tables_take_nothing_over() -> None:
    """Compensation in a tied head would change the embeddings."""
    model, plan = halved("qwen3")
    assert plan.tensors
    assert not any("embed" in name or "lm_head" in name for name in plan.tensors)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.shape == (61, 16)


@pytest.mark.parametrize("name", first(3, ["llama", "hf_vit", "opt", "qwen3", "phi"]))
def test_configs_say_the_hidden_size_where_they_can(name: str, tmp_path: Path) -> None:
    if name == "hf_vit":
        model: Any = built(name)
        batches = [{**tiny_inputs(name, 8), "labels": torch.arange(8) % 5}]
        plan = plan_width(model, Budget(remove={"hidden": 16}), batches=batches, kinds=HIDDEN, **QUICK)
        apply_plan(model, plan)
    else:
        model, plan = halved(name, **QUICK)
    inputs = tiny_inputs(name)
    save_pruned(model, plan, tmp_path / "pruned")
    if name == "opt":  # its code takes the size of a head for a share of the hidden size
        assert model.config.hidden_size == 32
        assert standard_class(tmp_path / "pruned") is None
        again: Any = load_pruned(tmp_path / "pruned")
    else:
        assert (model.config.hidden_size, model.config.head_dim) == (16, 8)
        again = type(model).from_pretrained(tmp_path / "pruned").eval()
    for parameter in again.parameters():  # a mapped file is aligned otherwise, and kernels round otherwise then
        parameter.data = parameter.data.clone()
    assert torch.equal(again(**inputs).logits, model(**inputs).logits)


def test_embeddings_scaled_by_the_hidden_size_keep_their_scale(tmp_path: Path) -> None:
    """Gemma's code would scale embeddings by the root of the smaller size, so the config's size stays the same."""
    model, plan = halved("gemma", **QUICK)
    assert model.config.hidden_size == 32
    again: Any = load_pruned(save_pruned(model, plan, tmp_path / "pruned"))
    assert torch.equal(again.eval()(**tiny_inputs("gemma")).logits, model(**tiny_inputs("gemma")).logits)
