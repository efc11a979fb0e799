"""Width surgery: narrowed equals masked, all or nothing, with an exact undo."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
import torch
from cases.engine import unchanged
from cases.width.masks import silenced
from cases.width.narrow import (
    CASES,
    TIED,
    bias_of,
    first_conv,
    layer,
    plain_attributes,
    second_conv,
    tensors_held,
    without,
)
from cases.width.narrow_models import Configured
from torch import Tensor, nn

from prunerecover.apply import apply_plan
from prunerecover.model.copies import meta_copy, share_copy
from prunerecover.model.hashing import tensors_hash
from prunerecover.plan.groups import Setting, Slice
from prunerecover.plan.plan import Plan
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.journal import SavingChecked
from prunerecover.surgery.provenance import plan_for


@pytest.mark.parametrize("name", CASES)
def test_narrowed_equals_masked(name: str) -> None:
    case = CASES[name]
    narrowed, dense = case.build(), case.build()
    apply_edits(narrowed, case.edits)
    assert sum(p.numel() for p in narrowed.parameters()) < sum(p.numel() for p in dense.parameters())
    with silenced(dense, case.masks), torch.no_grad():
        expected = dense(case.example())
    assert not torch.allclose(expected, dense(case.example()), atol=1e-3)  # what was removed mattered
    assert torch.allclose(narrowed(case.example()), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_undo_brings_back_the_same_objects_and_attributes(name: str) -> None:
    case = CASES[name]
    model = case.build()
    before, text = plain_attributes(model), repr(model)
    with unchanged(model):
        applied = apply_edits(model, case.edits)
        assert (plain_attributes(model), repr(model)) != (before, text)
        applied.journal.to_cpu()
        undo(model, applied.journal)
    assert plain_attributes(model) == before
    assert repr(model) == text


@pytest.mark.parametrize("name", CASES)
def test_a_pickled_and_a_copied_journal_bring_back_the_values(name: str) -> None:
    case = CASES[name]
    model, dense = case.build(), case.build()
    journal = apply_edits(model, case.edits).journal
    for pair in (pickle.loads(pickle.dumps((model, journal))), copy.deepcopy((model, journal))):
        undo(*pair)
        assert torch.equal(pair[0](case.example()), dense(case.example()))
        assert not set(pair[0].parameters()) & {p for entry in journal.entries for p in tensors_held(entry)}


@pytest.mark.parametrize("name", CASES)
def test_plan_survives_json_and_applies_anywhere(name: str) -> None:
    case = CASES[name]
    model, bare, half = case.build(), meta_copy(case.build()), case.build().bfloat16().requires_grad_(False)
    plan = Plan.from_dict(json.loads(json.dumps(plan_for(model, case.edits, method="test").to_dict())))
    assert plan.edits == case.edits
    twin = share_copy(model)
    with unchanged(model):
        apply_plan(twin, plan)
    apply_plan(model, plan)
    apply_plan(bare, plan)
    apply_plan(half, plan)
    assert tensors_hash(bare) == tensors_hash(model) == plan.result.tensors
    assert all(p.is_meta for p in bare.parameters())
    assert sum(p.numel() for p in model.parameters()) == plan.result.params
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in half.parameters())
    expected = model.bfloat16().state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in half.state_dict().items())
    with pytest.raises(ValueError, match="It has been pruned with this plan already"):
        apply_plan(model, plan)


def test_tied_tensors_stay_tied_and_buffers_stay_buffers() -> None:
    for group in (TIED, TIED[:1], TIED[1:]):  # one name of the two is enough
        model = CASES["tied"].build()
        apply_edits(model, [without("embed", "channel", 6, (2, 5), group)])
        assert model.head.weight is model.embed.weight
        assert model.embed.weight.shape == (11, 4)
        assert (model.head.in_features, model.embed.embedding_dim) == (4, 4)
    cnn = CASES["convolution"].build()
    cnn.bn1.register_buffer("running_mean", cnn.bn1.running_mean, persistent=False)
    apply_edits(cnn, [first_conv()])
    assert isinstance(cnn.bn1._buffers["running_mean"], Tensor)
    assert not isinstance(cnn.bn1.running_mean, nn.Parameter)
    assert "bn1.running_mean" not in cnn.state_dict()


def test_parameters_keep_their_order_layout_and_mode() -> None:
    model = CASES["convolution"].build().to(memory_format=torch.channels_last).train()
    model.bn1.eval()
    model.conv1.weight.requires_grad_(False)
    names = [name for name, _ in model.named_parameters()]
    apply_edits(model, [first_conv(), second_conv()])
    assert [name for name, _ in model.named_parameters()] == names
    assert model.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["conv1.weight"]
    assert (model.training, model.bn1.training) == (True, False)


def test_keeping_everything_changes_nothing() -> None:
    model = CASES["convolution"].build()
    with unchanged(model):
        applied = apply_edits(model, [first_conv(())])
    assert [type(entry) for entry in applied.journal.entries] == [SavingChecked]
    assert not applied.cuts


def sized_modules() -> list[tuple[nn.Module, dict[str, Any], int]]:
    """Return modules with 4 units along a dimension, and their attributes with a unit removed."""
    from timm.layers import BatchNormAct2d, LayerNorm2d, RmsNorm
    from torchvision.models import convnext
    from transformers.pytorch_utils import Conv1D

    rows: list[tuple[nn.Module, dict[str, Any], int]] = []
    for rank in (1, 3):
        conv, up = getattr(nn, f"Conv{rank}d"), getattr(nn, f"ConvTranspose{rank}d")
        rows += [(conv(2, 4, 1), {"in_channels": 2, "out_channels": 3, "groups": 1}, 0)]
        rows += [(conv(4, 2, 1), {"in_channels": 3, "out_channels": 2, "groups": 1}, 1)]
        rows += [(conv(4, 4, 1, groups=4), {"in_channels": 3, "out_channels": 3, "groups": 3}, 0)]
        rows += [(up(4, 2, 1), {"in_channels": 3, "out_channels": 2, "groups": 1}, 0)]
        rows += [(up(2, 4, 1), {"in_channels": 2, "out_channels": 3, "groups": 1}, 1)]
        rows += [(getattr(nn, f"BatchNorm{rank}d")(4), {"num_features": 3}, 0)]
        rows += [(getattr(nn, f"InstanceNorm{rank}d")(4, affine=True), {"num_features": 3}, 0)]
    norms = (LayerNorm2d, convnext.LayerNorm2d, RmsNorm, nn.LayerNorm, nn.RMSNorm)
    rows += [(norm(4), {"normalized_shape": (3,)}, 0) for norm in norms]
    return [
        *rows,
        (nn.Linear(2, 4), {"in_features": 2, "out_features": 3}, 0),
        (nn.Linear(4, 2, bias=False), {"in_features": 3, "out_features": 2}, 1),
        (Conv1D(4, 2), {"nx": 2, "nf": 3}, 1),
        (Conv1D(2, 4), {"nx": 3, "nf": 2}, 0),
        (nn.Embedding(5, 4), {"num_embeddings": 5, "embedding_dim": 3}, 1),
        (nn.GroupNorm(1, 4), {"num_channels": 3, "num_groups": 1}, 0),
        (nn.PReLU(4), {"num_parameters": 3}, 0),
        (BatchNormAct2d(4), {"num_features": 3}, 0),
        (nn.BatchNorm2d(4, affine=False), {"num_features": 3}, 0),
    ]


@pytest.mark.parametrize(
    ("module", "sizes", "dim"), [pytest.param(*row, id=f"{row[0]}/{row[2]}") for row in sized_modules()]
)
def test_modules_know_their_new_sizes(module: nn.Module, sizes: dict[str, Any], dim: int) -> None:
    rows = [n for n, t in module.state_dict().items() if t.ndim == 1 and len(t) == 4]
    group = [Slice(tensor=f"0.{name}", dim=0) for name in rows]
    if "weight" in module.state_dict() and module.weight.ndim > 1:
        group.append(Slice(tensor="0.weight", dim=dim))
    model, before = nn.Sequential(module), {name: getattr(module, name) for name in sizes}
    applied = apply_edits(model, [without("0", "channel", 4, (1,), tuple(group))])
    assert {name: getattr(module, name) for name in sizes} == sizes
    undo(model, applied.journal)
    assert {name: getattr(module, name) for name in sizes} == before


def test_grouped_convolution_loses_whole_groups_or_the_same_number_in_each() -> None:
    def narrowed(gone: tuple[int, ...]) -> nn.Conv2d:
        model = nn.Sequential(nn.Conv2d(4, 6, 1, groups=2))
        apply_edits(model, [without("0", "channel", 6, gone, (Slice(tensor="0.weight", dim=0), bias_of("0")))])
        return model[0]

    whole, inside = narrowed((0, 1, 2)), narrowed((0, 5))
    assert (whole.groups, whole.in_channels, whole.out_channels) == (1, 2, 3)
    assert (inside.groups, inside.in_channels, inside.out_channels) == (2, 4, 4)
    assert whole(torch.ones(1, 2, 1, 1)).shape == (1, 3, 1, 1)
    assert inside(torch.ones(1, 4, 1, 1)).shape == (1, 4, 1, 1)


def test_settings_follow_and_a_shared_config_says_what_each_layer_has() -> None:
    model = Configured()
    config = Setting(module="", attribute="config.inner")
    width, both = Setting(module="norm", attribute="normalized_shape"), Setting(module="", attribute="both")
    applied = apply_edits(model, [layer("a", config, width, both), layer("b", config, both)])
    assert (model.config.inner, model.norm.normalized_shape, model.both) == (4, (4,), 8)
    undo(model, applied.journal)
    assert (model.config.inner, model.norm.normalized_shape, model.both) == (6, (6,), 12)
