"""Settings outside names and shapes, such as the number of heads, are compared as well before any change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.engine import unchanged
from cases.models.tiny import plain_vit, tiny_llama
from cases.tiny_plans import tiny_plan
from torch import nn

from prunerecover import Budget, Plan, apply_plan, find_groups, load_pruned, plan_depth, plan_width, save_pruned
from prunerecover.plan.edits import Narrow
from prunerecover.surgery.provenance import plan_for
from prunerecover.width.groups.narrow_edits import narrow_edits

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


@pytest.mark.parametrize("how", ["depth", "width"])
def test_plan_is_not_applied_to_a_model_with_other_heads(how: str) -> None:
    model = vit()
    plan = head_plan(model) if how == "width" else plan_depth(model, Budget(remove={"block": 1}), batches=[IMAGES])
    other = vit(2)
    with unchanged(other), pytest.raises(ValueError, match=TWO_HEADS):
        apply_plan(other, plan)


def saved(model: nn.Module, plan: Plan, folder: Path) -> Path:
    apply_plan(model, plan)
    return save_pruned(model, plan, folder / "pruned")


def test_pruned_model_is_not_loaded_into_one_with_other_heads(tmp_path: Path) -> None:
    model, other = vit(), vit(2)
    path = saved(model, head_plan(model), tmp_path)
    with unchanged(other), pytest.raises(ValueError, match=TWO_HEADS):
        load_pruned(path, other)


def test_edited_constructor_is_refused(tmp_path: Path) -> None:
    model = tiny_llama()
    path = saved(model, tiny_plan(model, (1, "block", "nothing")), tmp_path)
    edited(path / "plan.json", lambda data: data["source"]["constructor"]["config"].update(hidden_act="relu"))
    with pytest.raises(ValueError, match="Expected the original constructor in the plan.*edited"):
        load_pruned(path)


def test_deleted_settings_are_refused(tmp_path: Path) -> None:
    model = vit()
    path = edited(head_plan(model).save(tmp_path / "plan.json"), lambda data: data["edits"][0].update(settings=[]))
    with unchanged(model), pytest.raises(ValueError, match="'num_heads' of 'blocks.0.attn'.*4 heads.*edited"):
        apply_plan(model, path)


def test_deleted_settings_of_no_attention_are_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 2, 1))
    plan = plan_width(model, Budget(remove={"channel": 2}), batches=[IMAGES], importance="magnitude", replace="zero")
    (narrow,) = plan.edits
    assert isinstance(narrow, Narrow)
    without = plan.model_copy(update={"edits": (narrow.model_copy(update={"settings": ()}),)})
    with unchanged(model), pytest.raises(ValueError, match="num_groups is 2 there, but 4"):
        apply_plan(model, without)


def test_plans_without_settings_still_apply() -> None:
    model = vit()
    plan = head_plan(model)
    data = plan.to_dict()
    del data["source"]["settings"], data["result"]["settings"]
    apply_plan(model, Plan.from_dict(data))
    assert model(IMAGES).shape == (8, 3)
