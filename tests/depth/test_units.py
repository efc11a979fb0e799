"""Units: what their removal saves, and which parameters they stand for."""

from __future__ import annotations

import pytest
import torch
from cases.engine import PLANNED, build

from prunerecover.depth.units import find_units
from prunerecover.families.describe import describe
from prunerecover.importance.parameters import unit_parameters
from prunerecover.plan.edits import Replace
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.merging import merge


@pytest.mark.parametrize("name", PLANNED)
def test_units_tell_what_removal_and_merging_save(name: str) -> None:
    for unit in find_units(build(name)):
        model = build(name)
        before = sum(p.numel() for p in model.parameters())
        if unit.kind == "block":
            continue
        leaves = "identity" if unit.kind == "activation" else "constant"
        values = {} if leaves == "identity" else {"e0.bias": torch.zeros(32)}
        apply_edits(model, [Replace(unit=unit.name, kind=unit.kind, leaves=leaves, tensors=tuple(values))], values)
        merge(model)
        saved = before - sum(p.numel() for p in model.parameters())
        left = 32 if values else 0
        norm = 2 * 32 if unit.kind == "activation" and describe(model).blocks[0].mlp.norm else 0
        scale = 32 if unit.kind == "activation" and name == "timm_all" else 0
        assert saved + left - norm - scale == unit.params, unit


def test_unknown_kind_is_explained() -> None:
    with pytest.raises(ValueError, match="Expected kinds among block, .*, layer for a plan in depth, but got 'head'"):
        find_units(build("timm"), ("head",))


def test_unit_knows_its_block() -> None:
    assert {u.block for u in find_units(build("opt"))} == {f"model.decoder.layers.{i}" for i in range(4)}


def test_activation_stands_for_its_linears() -> None:
    model = build("opt")
    (unit,) = (u for u in find_units(model, ("activation",)) if ".2." in u.name)
    layer = model.model.decoder.layers[2]
    assert unit_parameters(model, [unit])[unit.name] == [*layer.fc1.parameters(), *layer.fc2.parameters()]
