"""`apply_plan` with the path of a plan, and with plans whose edits have the wrong form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.models.tiny import tiny_llama, tiny_timm
from cases.tiny_plans import assert_same, logits, structure, tiny_plan
from torch import nn

from prunerecover import Plan, apply_plan
from prunerecover.plan.edits import Config, Merge, Remove, Replace, Rewrite
from prunerecover.surgery.provenance import plan_for


def test_a_plan_is_applied_by_its_path(tmp_path: Path) -> None:
    plan = tiny_plan(tiny_timm(), (1, "activation", "slope_bias"))
    path = plan.save(tmp_path / "plan.json")
    first, second, third = tiny_timm(), tiny_timm(), tiny_timm()
    apply_plan(first, plan)
    apply_plan(second, path)
    apply_plan(third, str(path))
    assert torch.equal(logits(first, "timm"), logits(second, "timm"))
    assert torch.equal(logits(first, "timm"), logits(third, "timm"))


def test_no_file_at_the_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Expected a plan file at .*none.json, but there is none"):
        apply_plan(tiny_timm(), tmp_path / "none.json")


@pytest.mark.parametrize("plan", [None, 3, {"edits": []}])
def test_what_is_no_plan(plan: Any) -> None:
    with pytest.raises(TypeError, match="Expected a Plan, but got"):
        apply_plan(tiny_timm(), plan)


def refused(model: nn.Module, plan: Plan, message: str) -> None:
    before = structure(model)
    with pytest.raises(ValueError, match=message):
        apply_plan(model, plan)
    assert_same(model, before)


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
    plan = tiny_plan(model, (1, "attention", "zero"))
    tensors = {"e0.weight": torch.eye(4)}
    refused(model, plan.model_copy(update={"edits": (*plan.edits, edit)}).with_tensors(tensors), message)


@pytest.mark.parametrize("entries", [{"num_hidden_layers": "3"}, {"_name_or_path": "x"}, {"head_dim": [3]}])
def test_config_entries_of_another_form(entries: dict[str, Any]) -> None:
    model = tiny_llama()
    plan = plan_for(
        model, [Remove(unit="model.layers.1", kind="block"), Config(set={"num_hidden_layers": 3})], method=""
    )
    refused(model, plan.model_copy(update={"edits": (plan.edits[0], Config(set=entries))}), "to stay what it is .* but")


NARROW = {"op": "narrow", "unit": "x", "kind": "head", "keep": [0], "group": []}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "units without end": ({**NARROW, "of": 10**12}, "less than or equal to 1048576"),
    "words for numbers": ({**NARROW, "of": "many"}, "should be a valid integer"),
}


@pytest.mark.parametrize("case", WRONG)
def test_edits_of_another_form(case: str, tmp_path: Path) -> None:
    edit, message = WRONG[case]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**Plan().to_dict(), "edits": [edit]}))
    model = tiny_timm()
    before = structure(model)
    with pytest.raises(ValueError, match=f"(?s)Expected a valid plan, but .* is wrong: .*{message}"):
        apply_plan(model, path)
    assert_same(model, before)


def test_keys_that_no_plan_has() -> None:
    first, second = (tiny_plan(tiny_timm(), (1, "attention", "constant")) for _ in range(2))
    edit = Replace(unit="a", kind="attention", leaves="constant", tensors=("x.bias",))
    second = second.model_copy(update={"edits": (edit,), "source": first.source.model_copy()})
    first = first.model_copy(update={"result": first.result.model_copy(update={"tensors": second.source.tensors})})
    with pytest.raises(ValueError, match="Expected keys of fitted tensors like 'e0.bias', but got 'x.bias'"):
        first + second
