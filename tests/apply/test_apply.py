"""Plans on copies, wrapped and meta models alike, also by path; a wrong plan changes no model."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.engine import batch_of, batches_of, build, equal, output_of, plan_of, unchanged
from cases.models.tiny import plain_vit, tiny_llama, tiny_timm
from cases.tiny_plans import tiny_plan
from torch import nn

from prunerecover import Budget, Plan, find_groups, load_pruned, plan_width, save_pruned
from prunerecover.apply import apply_plan
from prunerecover.model.copies import meta_copy
from prunerecover.model.hashing import tensors_hash
from prunerecover.plan.edits import Config, Merge, Narrow, Remove, Replace, Rewrite
from prunerecover.planning.plan_depth import plan_depth
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.groups.narrow_edits import narrow_edits

ZERO, FITTED = (1, "attention", "zero"), (1, "activation", "slope_bias")
BLOCK = (1, "block", "nothing")
BRANCHES = ((0, "attention", "affine"), (2, "mlp", "affine"))


def refused(model: nn.Module, plan: Any, message: str) -> None:
    with unchanged(model), pytest.raises(ValueError, match=message):
        apply_plan(model, plan)


def test_plan_for_another_model_changes_nothing() -> None:
    model = build("timm")
    plan = plan_of("timm", model, remove={"attention": 1})
    refused(build("timm_all"), plan, "this model has 4 blocks. Make a plan for it")
    refused(build("llama"), plan, "but got LlamaForCausalLM")
    refused(nn.Linear(2, 2), plan, "of a supported family")
    apply_plan(model, plan)
    refused(model, plan, "It has been pruned with this plan already")


def test_structure_alone_applies_to_other_weights() -> None:
    model = build("timm")
    plan, fitted = tiny_plan(model, ZERO), tiny_plan(model, FITTED)
    with torch.no_grad():
        model.head.weight.mul_(2)
    refused(model, fitted, r"but the model has others .*Pass refit=batches")
    assert apply_plan(model, plan).removed


def test_plan_that_leaves_another_model_is_taken_back() -> None:
    model = build("timm")
    edits = (Remove(unit="blocks.0.mlp", kind="mlp"),)
    refused(model, tiny_plan(model, ZERO).model_copy(update={"edits": edits}), "Was the file edited")


@pytest.mark.parametrize("name", ["timm_all", "llama", "bert"])
def test_plan_applies_to_a_bfloat16_copy(name: str) -> None:
    model = build(name)
    plan = tiny_plan(model, *BRANCHES)
    half = copy.deepcopy(model).bfloat16()
    apply_plan(half, plan)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    apply_plan(model, plan)
    assert equal(half.state_dict(), model.bfloat16().state_dict())


@pytest.mark.parametrize("name", ["timm_all", "gpt2", "llama"])
def test_plan_applies_on_the_meta_device(name: str) -> None:
    model = build(name)
    bare = meta_copy(model)
    plan = tiny_plan(model, *BRANCHES, BLOCK)
    apply_plan(bare, plan)
    assert all(p.is_meta for p in bare.parameters())
    assert tensors_hash(bare) == plan.result.tensors
    assert sum(p.numel() for p in bare.parameters()) == plan.result.params


def test_wrapped_model_takes_the_same_plan() -> None:
    model, bare = build("timm"), build("timm")
    wrapped = nn.DataParallel(model)
    plan = plan_depth(wrapped, remove={"attention": 1, "activation": 1}, batches=batches_of("timm"))
    apply_plan(bare, plan)
    apply_plan(wrapped, plan)
    assert torch.equal(output_of(model, batch_of("timm")), output_of(bare, batch_of("timm")))


def test_a_plan_is_applied_by_its_path(tmp_path: Path) -> None:
    plan = tiny_plan(tiny_timm(), FITTED)
    path = plan.save(tmp_path / "plan.json")
    models = [tiny_timm(), tiny_timm(), tiny_timm()]
    for model, given in zip(models, (plan, path, str(path)), strict=True):
        apply_plan(model, given)
    assert equal(models[0].state_dict(), models[1].state_dict())
    assert equal(models[0].state_dict(), models[2].state_dict())
    with pytest.raises(FileNotFoundError, match="Expected a plan file at .*none.json, but there is none"):
        apply_plan(tiny_timm(), tmp_path / "none.json")


@pytest.mark.parametrize("plan", [None, {"edits": []}])
def test_what_is_no_plan(plan: Any) -> None:
    with pytest.raises(TypeError, match="Expected a Plan, but got"):
        apply_plan(tiny_timm(), plan)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (Merge(into="norm", from_=("norm",)), "Expected only linear maps to merge, but 'norm' is a LayerNorm"),
        (Rewrite(unit="pos_drop", in_channels=1, out_channels=10**9), "have at most the .* channels of this model's"),
        (Remove(unit="blocks.x", kind="block"), "Plan removes block 'blocks.x' but the model has"),
        (
            Replace(unit="blocks.2.attn", kind="attention", leaves="affine", tensors=("e0.weight",)),
            "Expected keys of the fitted weight, bias of 'blocks.2.attn', but got e0.weight",
        ),
        (Remove(unit="blocks.99", kind="block"), "Plan removes block 'blocks.99' but the model has"),
    ],
)
def test_edits_that_fit_nothing(edit: Any, message: str) -> None:
    model = tiny_timm()
    plan, tensors = tiny_plan(model, ZERO), {"e0.weight": torch.eye(4)}
    refused(model, plan.model_copy(update={"edits": (*plan.edits, edit)}).with_tensors(tensors), message)


@pytest.mark.parametrize("entries", [{"num_hidden_layers": "3"}, {"_name_or_path": "x"}, {"head_dim": [3]}])
def test_config_entries_of_another_form(entries: dict[str, Any]) -> None:
    model = tiny_llama()
    plan = tiny_plan(model, BLOCK)
    refused(model, plan.model_copy(update={"edits": (plan.edits[0], Config(set=entries))}), "to stay what it is .* but")


@pytest.mark.parametrize(
    ("units", "message"), [(10**12, "less than or equal to 1048576"), ("many", "should be a valid integer")]
)
def test_edits_of_another_form(units: Any, message: str, tmp_path: Path) -> None:
    edit = {"op": "narrow", "unit": "x", "kind": "head", "keep": [0], "group": [], "of": units}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**Plan().to_dict(), "edits": [edit]}))
    refused(tiny_timm(), path, f"(?s)Expected a valid plan, but .* is wrong: .*{message}")


def test_keys_that_no_plan_has() -> None:
    first, second = (tiny_plan(tiny_timm(), (1, "attention", "constant")) for _ in range(2))
    edit = Replace(unit="a", kind="attention", leaves="constant", tensors=("x.bias",))
    second = second.model_copy(update={"edits": (edit,), "source": first.source.model_copy()})
    first = first.model_copy(update={"result": first.result.model_copy(update={"tensors": second.source.tensors})})
    with pytest.raises(ValueError, match="Expected keys of fitted tensors like 'e0.bias', but got 'x.bias'"):
        first + second


# Settings outside names and shapes, such as the number of heads, are compared as well before any change.

IMAGES = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
TWO_HEADS = "Expected the model that the plan was made for.*num_heads is 4 there, but 2 in this"


def vit(heads: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return plain_vit(num_heads=heads, num_classes=3).eval()


def head_plan(model: nn.Module) -> Plan:
    groups = find_groups(model, IMAGES, ("head",)).groups
    edits = narrow_edits(groups, {group.name: torch.tensor([1]) for group in groups})
    return plan_for(model, edits, method="test", example=None)


def edited(path: Path, change: Callable[[Any], None]) -> Path:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


def saved(model: nn.Module, plan: Plan, folder: Path) -> Path:
    apply_plan(model, plan)
    return save_pruned(model, plan, folder / "pruned")


def test_a_model_with_other_heads_takes_neither_plan_nor_folder(tmp_path: Path) -> None:
    model, other = vit(), vit(2)
    plan = head_plan(model)
    refused(other, plan, TWO_HEADS)
    refused(other, tiny_plan(model, BLOCK), TWO_HEADS)
    path = saved(model, plan, tmp_path)
    with unchanged(other), pytest.raises(ValueError, match=TWO_HEADS):
        load_pruned(path, other)


def test_edited_constructor_is_refused(tmp_path: Path) -> None:
    model = tiny_llama()
    path = saved(model, tiny_plan(model, BLOCK), tmp_path)
    edited(path / "plan.json", lambda data: data["source"]["constructor"]["config"].update(hidden_act="relu"))
    with pytest.raises(ValueError, match="Expected the original constructor in the plan.*edited"):
        load_pruned(path)


def test_deleted_settings_are_refused(tmp_path: Path) -> None:
    model = vit()
    path = edited(head_plan(model).save(tmp_path / "plan.json"), lambda data: data["edits"][0].update(settings=[]))
    refused(model, path, "'num_heads' of 'blocks.0.attn'.*4 heads.*edited")
    model = nn.Sequential(nn.Conv2d(3, 16, 1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 2, 1))
    plan = plan_width(model, Budget(remove={"channel": 2}), batches=[IMAGES], importance="magnitude", replace="zero")
    (narrow,) = plan.edits
    assert isinstance(narrow, Narrow)
    without = plan.model_copy(update={"edits": (narrow.model_copy(update={"settings": ()}),)})
    refused(model, without, "num_groups is 2 there, but 4")


def test_plans_without_settings_still_apply() -> None:
    model = vit()
    data = head_plan(model).to_dict()
    del data["source"]["settings"], data["result"]["settings"]
    apply_plan(model, Plan.from_dict(data))
    assert model(IMAGES).shape == (8, 3)
