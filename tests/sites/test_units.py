"""Units: savings of their removal, and their parameters."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from cases.depth.hand_made import PostNorm
from cases.engine import PLANNED, build
from torch import nn

from prunerecover import plan_depth
from prunerecover.families.describe import describe
from prunerecover.importance.context import unit_parameters
from prunerecover.plan.edits import Replace
from prunerecover.plan.kinds import DEPTH_KINDS
from prunerecover.sites.find import find_units
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
        find_units(build("timm"), kinds=("head",))


def test_activation_stands_for_its_linears() -> None:
    model = build("opt")
    (unit,) = (u for u in find_units(model, kinds=("activation",)) if ".2." in u.name)
    layer = model.model.decoder.layers[2]
    assert unit_parameters(model, unit) == [*layer.fc1.parameters(), *layer.fc2.parameters()]


def test_a_kind_that_a_network_does_not_have_is_answered_with_those_that_it_has() -> None:
    model, rows = PostNorm(), torch.rand(2, 3, 5)
    found = Counter(unit.kind for unit in find_units(model, rows, DEPTH_KINDS))
    assert len(found) > 1
    having = ", ".join(f"{number} of kind {kind}" for kind, number in found.items())
    match = f"PostNorm to have units of kind block that may go, but there is none.* It has others: {having}"
    assert find_units(model, rows, "block") == ()
    with pytest.raises(ValueError, match=match):
        plan_depth(model, remove={"block": 1}, batches=[rows])


def test_names_of_units_of_other_kinds_may_be_ignored() -> None:
    """A single list of names to keep serves plans of any kinds, as in supported families."""
    blocks = [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(3)]
    model, ignore = nn.Sequential(*blocks, nn.Linear(8, 2)), ["0", "1.self_attn", "2.linear*"]
    plan = plan_depth(model, remove={"attention": 2}, batches=[torch.rand(2, 5, 8)], ignore=ignore)
    assert plan.removed == {"attention": ("0.self_attn", "2.self_attn")}
    with pytest.raises(ValueError, match=r"ignore to match units such as .*, but '9\.\*' matches none"):
        plan_depth(model, remove={"attention": 1}, batches=[torch.rand(2, 5, 8)], ignore=["9.*"])
