"""Columns of the support matrix: conditions for a family's cell to say yes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cases.models.families import squares
from cases.support.families import BLOCKS, DEPTH, NARROW, Family
from cases.width.groups import outputs
from torch import Tensor, nn

from prunerecover import Budget, Plan, apply_plan, export, find_groups, load_pruned, plan_depth, plan_width, save_pruned
from prunerecover.checkpoint.pruned_folder import standard_class
from prunerecover.families.describe import describe
from prunerecover.refusal import Refusal

WIDTH = ("channel", "head", "neuron", "hidden")


def planned(model: nn.Module, batch: Any, kind: str, alike: bool = False) -> Plan:
    """Plan the removal of a unit of depth, or of two units of width; equal in all layers if `alike`."""
    if kind in DEPTH:
        return plan_depth(model, remove={kind: 1}, batches=[batch] * 4)
    settings: dict[str, Any] = {"batches": [batch], "loss": squares, "kinds": (kind,)}
    if alike:
        settings["allocation"] = "uniform"
        settings["ignore"] = others(model, batch, kind)
        budget = Budget(remove={kind: 4}) if kind == "expert" else Budget(ratio={kind: 0.25})
        return plan_width(model, budget, **settings)
    return plan_width(model, Budget(remove={kind: 2}), **settings)


def others(model: nn.Module, batch: Any, kind: str) -> list[str]:
    """Names of groups outside a BERT's layers or a text's, whose sizes are in no config."""
    if hasattr(model, "bert"):
        return ["bert.pooler.*"]
    if not hasattr(getattr(model, "config", None), "vision_config"):
        return []
    text = describe(model).container
    return [group.name for group in find_groups(model, batch, [kind]) if not group.name.startswith(text)]


@torch.no_grad()
def given(model: nn.Module, batch: Any) -> list[Tensor]:
    return outputs(model.eval(), batch)


def assert_same(one: nn.Module, other: nn.Module, batch: Any) -> None:
    for parameter in other.parameters():  # a mapped file is aligned otherwise, and kernels round otherwise then
        parameter.data = parameter.data.clone()
    pairs = list(zip(given(one, batch), given(other, batch), strict=True))
    assert pairs
    assert all(torch.equal(a, b) for a, b in pairs)


def is_removed(family: Family, folder: Path, kind: str) -> None:
    """Check that units are removed as in the plan, gradients flow, and the saved folder opens as the same network."""
    model, batch = family.build()
    dense = sum(p.numel() for p in model.parameters())
    plan = planned(model, batch, kind)
    apply_plan(model, plan)
    assert plan.result.params == sum(p.numel() for p in model.parameters())
    assert plan.result.params < dense or kind == "activation"
    assert plan.removed[kind]
    again = load_pruned(save_pruned(model, plan, folder / "pruned"), family.build()[0])
    assert_same(model, again, batch)
    squares(model, batch).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


def is_standard(family: Family, folder: Path, kinds: tuple[str, ...]) -> None:
    """Check that the folder of a pruned model opens by `from_pretrained` of its own class alone."""
    model, batch = family.build()
    kind = next(kind for kind in kinds if kind in family.works)
    plan = planned(model, batch, kind, alike=True)
    apply_plan(model, plan)
    save_pruned(model, plan, folder / "pruned")
    assert standard_class(folder / "pruned") == type(model).__name__
    again = type(model).from_pretrained(folder / "pruned")  # type: ignore[attr-defined]
    assert_same(model, again, batch)


def is_exported(family: Family, folder: Path) -> None:
    """Check that a pruned model has the same outputs in onnxruntime, as `export` compares them."""
    model, batch = family.build()
    kind = next(kind for kind in (*DEPTH, *WIDTH) if kind in family.works)
    apply_plan(model, planned(model, batch, kind))
    export(model, folder / "model.onnx", batch)


COLUMNS: Mapping[str, Callable[[Family, Path], None]] = {
    **{kind: partial(is_removed, kind=kind) for kind in (*DEPTH, *WIDTH, "expert")},
    BLOCKS: partial(is_standard, kinds=("block",)),
    NARROW: partial(is_standard, kinds=("expert", "neuron")),
    "ONNX": is_exported,
}


def outcome(family: Family, column: str, folder: Path) -> str:
    """Run a cell; return "" if it works, else the error's message."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            COLUMNS[column](family, folder)
    except Refusal as error:  # it has a cause and a way out
        return str(error)
    return ""
