"""Width surgery: narrowed equals masked, all or nothing, and it can be taken back."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_cases import unchanged
from habits import tiny_vit
from narrow_cases import (
    CASES,
    CONV1,
    REWRITE,
    TIED,
    Depthwise,
    Experts,
    Padded,
    SmallCnn,
    Tied,
    Upsampling,
    built,
    first_conv,
    head_edit,
    maps,
    neuron_edit,
    norm,
    reads,
    second_conv,
    silenced,
    vit,
    without,
)
from pydantic import ValidationError
from tiny_models import tiny_inputs, tiny_llama
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import compare, find_units, load_pruned, merge, plan_depth, save_pruned, update_optimizer
from prunerecover.copies import meta_copy, twin_of
from prunerecover.edits import Edit, Merge, Narrow, Remove, Replace, Rewrite
from prunerecover.fingerprint import tensors_hash
from prunerecover.macs import count_macs
from prunerecover.plan import Plan
from prunerecover.provenance import plan_for
from prunerecover.removed_units import removed_units, shortened
from prunerecover.surgery import apply_edits, apply_plan, undo
from prunerecover.width.channel_map import ChannelMap
from prunerecover.width.groups import Setting, Slice


def plain_attributes(model: nn.Module) -> list[dict[str, Any]]:
    kinds = (int, float, str, tuple)
    return [{k: v for k, v in vars(m).items() if isinstance(v, kinds)} for m in model.modules()]


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
        assert not set(pair[0].parameters()) & {p for entry in journal.entries for p in _held(entry)}


def _held(entry: Any) -> list[Tensor]:
    return [entry.old] if isinstance(getattr(entry, "old", None), Tensor) else []


@pytest.mark.parametrize("name", CASES)
def test_plan_survives_json_and_applies_anywhere(name: str) -> None:
    case = CASES[name]
    model, bare, half = case.build(), meta_copy(case.build()), case.build().bfloat16().requires_grad_(False)
    plan = Plan.from_dict(json.loads(json.dumps(plan_for(model, case.edits, method="test").to_dict())))
    assert plan.edits == case.edits
    twin = twin_of(model)
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


def test_json_leaves_defaults_out() -> None:
    data = Plan(edits=(head_edit(),)).to_dict()["edits"][0]
    assert data["keep"] == [0, 2, 3]
    assert data["group"][2] == {"tensor": "blocks.1.attn.proj.weight", "dim": 1, "span": 4, "makes": False}
    assert data["settings"][0] == {"module": "blocks.1.attn", "attribute": "num_heads"}


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


def test_three_dimensional_layout_is_kept() -> None:
    model = nn.Sequential(nn.Conv3d(2, 4, 3)).to(memory_format=torch.channels_last_3d)
    apply_edits(model, [without("0", "channel", 4, (0,), (Slice(tensor="0.weight", dim=0), _bias("0")))])
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert not model[0].weight.is_contiguous()


def _bias(path: str) -> Slice:
    return Slice(tensor=f"{path}.bias", dim=0)


def test_keeping_everything_changes_nothing() -> None:
    model = CASES["convolution"].build()
    with unchanged(model):
        applied = apply_edits(model, [first_conv(())])
    assert not applied.journal.entries
    assert not applied.cuts


def layer_norm_2d() -> list[tuple[nn.Module, dict[str, Any]]]:
    from timm.layers import LayerNorm2d, RmsNorm
    from torchvision.models.convnext import LayerNorm2d as LayerNorm2dOfTorchvision

    sizes = {"normalized_shape": (3,)}
    return [(cls(4), sizes) for cls in (LayerNorm2d, LayerNorm2dOfTorchvision, RmsNorm, nn.LayerNorm, nn.RMSNorm)]


def sized_modules() -> list[tuple[nn.Module, dict[str, Any], int]]:
    """Modules with 4 units along a dimension, and their attributes once one is gone."""
    from timm.layers import BatchNormAct2d
    from transformers.pytorch_utils import Conv1D

    rows: list[tuple[nn.Module, dict[str, Any], int]] = []
    for rank in (1, 2, 3):
        conv, up = getattr(nn, f"Conv{rank}d"), getattr(nn, f"ConvTranspose{rank}d")
        rows += [(conv(2, 4, 1), {"in_channels": 2, "out_channels": 3, "groups": 1}, 0)]
        rows += [(conv(4, 2, 1), {"in_channels": 3, "out_channels": 2, "groups": 1}, 1)]
        rows += [(conv(4, 4, 1, groups=4), {"in_channels": 3, "out_channels": 3, "groups": 3}, 0)]
        rows += [(up(4, 2, 1), {"in_channels": 3, "out_channels": 2, "groups": 1}, 0)]
        rows += [(up(2, 4, 1), {"in_channels": 2, "out_channels": 3, "groups": 1}, 1)]
        rows += [(getattr(nn, f"BatchNorm{rank}d")(4), {"num_features": 3}, 0)]
        rows += [(getattr(nn, f"InstanceNorm{rank}d")(4, affine=True), {"num_features": 3}, 0)]
    rows += [(norm, sizes, 0) for norm, sizes in layer_norm_2d()]
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
    model = nn.Sequential(module)
    applied = apply_edits(model, [without("0", "channel", 4, (1,), tuple(group))])
    assert {name: getattr(module, name) for name in sizes} == sizes
    undo(model, applied.journal)
    assert all(getattr(module, name) == getattr(copy.deepcopy(module), name) for name in sizes)
    assert getattr(module, next(iter(sizes))) in (2, 4, 5, (4,))


def test_grouped_convolution_loses_whole_groups_or_the_same_number_in_each() -> None:
    def narrowed(gone: tuple[int, ...]) -> nn.Conv2d:
        model = nn.Sequential(nn.Conv2d(4, 6, 1, groups=2))
        apply_edits(model, [without("0", "channel", 6, gone, (Slice(tensor="0.weight", dim=0), _bias("0")))])
        return model[0]

    whole, inside = narrowed((0, 1, 2)), narrowed((0, 5))
    assert (whole.groups, whole.in_channels, whole.out_channels) == (1, 2, 3)
    assert (inside.groups, inside.in_channels, inside.out_channels) == (2, 4, 4)
    assert whole(torch.ones(1, 2, 1, 1)).shape == (1, 3, 1, 1)
    assert inside(torch.ones(1, 4, 1, 1)).shape == (1, 4, 1, 1)


class SharedConfig:
    def __init__(self) -> None:
        self.inner, self.label = 6, "a"

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Configured(nn.Module):
    """Two layers that share a config, as in transformers; a norm without parameters; a count of more than one group."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SharedConfig()
        self.a, self.b = nn.Linear(2, 6), nn.Linear(2, 6)
        self.norm = nn.LayerNorm(6, elementwise_affine=False)
        self.both, self.flag = 12, True


def layer(name: str, *settings: Setting) -> Narrow:
    group = (Slice(tensor=f"{name}.weight", dim=0), _bias(name))
    return without(name, "neuron", 6, (0, 1), group, settings=settings)


def test_settings_follow_and_a_shared_config_says_what_each_layer_has() -> None:
    model = Configured()
    config = Setting(module="", attribute="config.inner")
    width, both = Setting(module="norm", attribute="normalized_shape"), Setting(module="", attribute="both")
    applied = apply_edits(model, [layer("a", config, width, both), layer("b", config, both)])
    assert (model.config.inner, model.norm.normalized_shape, model.both) == (4, (4,), 8)
    undo(model, applied.journal)
    assert (model.config.inner, model.norm.normalized_shape, model.both) == (6, (6,), 12)


GROUPNORM = (Slice(tensor="0.weight", dim=0), _bias("0"))
BAD: dict[str, tuple[Callable[[], nn.Module], Edit, str]] = {
    "no module": (SmallCnn, without("x", "channel", 8, (0,), (reads("conv9"),)), r"but the model \(SmallCnn\) has no"),
    "no tensor": (
        SmallCnn,
        without("conv1", "channel", 8, (0,), (Slice(tensor="conv1.gain", dim=0),)),
        r"parameter or buffer at 'conv1\.gain', but conv1 \(Conv2d\) has none called 'gain'",
    ),
    "no tensor at the top": (
        SmallCnn,
        without("gain", "channel", 8, (0,), (Slice(tensor="gain", dim=0),)),
        r"parameter or buffer at 'gain', but the model \(SmallCnn\) has none",
    ),
    "no bias": (SmallCnn, without("conv2", "channel", 6, (0,), (_bias("conv2"),)), "none called 'bias'"),
    "dimension": (
        SmallCnn,
        without("conv1", "channel", 8, (0,), (Slice(tensor="conv1.bias", dim=1),)),
        r"a dimension of 'conv1\.bias' \(8,\), but 'conv1' names 1",
    ),
    "negative dimension": (
        SmallCnn,
        without("conv1", "channel", 8, (0,), (Slice(tensor="conv1.bias", dim=-1),)),
        "but 'conv1' names -1",
    ),
    "too many units": (SmallCnn, first_conv((0,), of=9), r"Expected 9 units of 1 in 'bn1\.weight' \(8,\) along dim"),
    "offset": (
        SmallCnn,
        without("conv1", "channel", 8, (0,), (Slice(tensor="conv1.bias", dim=0, offsets=(1,)),)),
        r"from \[1\] on, but they do not fit",
    ),
    "negative offset": (
        SmallCnn,
        without("conv1", "channel", 4, (0,), (Slice(tensor="conv1.bias", dim=0, offsets=(-1,)),)),
        r"from \[-1\] on, but they do not fit",
    ),
    "no offset": (
        SmallCnn,
        without("conv1", "channel", 4, (0,), (Slice(tensor="conv1.bias", dim=0, offsets=()),)),
        r"from \[\] on, but they do not fit",
    ),
    "span": (
        SmallCnn,
        without("conv1", "channel", 8, (0,), (Slice(tensor="conv1.bias", dim=0, span=0),)),
        r"8 units of 0 in",
    ),
    "overlap": (
        SmallCnn,
        without("conv1", "channel", 4, (0,), (Slice(tensor="conv1.bias", dim=0, offsets=(0, 2)),)),
        r"parts of 'conv1\.bias' .* to lie apart, but one begins at 2, inside the one from 0 to 3",
    ),
    "overlap under two names": (
        Tied,
        without("embed", "channel", 3, (0,), (Slice(tensor="embed.weight", dim=1), reads("head", offsets=(1,)))),
        r"but one begins at 1, inside the one from 0 to 2",
    ),
    "bias forgotten": (
        SmallCnn,
        without("conv1", "channel", 8, (0,), tuple(s for s in CONV1 if s.tensor != "conv1.bias")),
        r"the tensors of 'conv1' to keep one length, but got weight 7, bias 8\. Name all",
    ),
    "statistics forgotten": (
        SmallCnn,
        without("conv1", "channel", 8, (0,), norm("bn1")[:3]),
        r"of 'bn1' to keep one length, but got weight 7, bias 7, running_mean 7, running_var 8",
    ),
    "linear": (
        Experts,
        without("router", "expert", 5, (0,), (Slice(tensor="router.weight", dim=0),)),
        "of 'router' to keep one length, but got weight 4, bias 5",
    ),
    "uneven groups": (
        Depthwise,
        without("depthwise", "channel", 16, (0,), (Slice(tensor="depthwise.weight", dim=0), _bias("depthwise"))),
        r"of the convolution 'depthwise' to keep equally many channels or none, but \[1, 2, 2, 2, 2, 2, 2, 2\] would",
    ),
    "group norm": (
        lambda: nn.Sequential(nn.GroupNorm(2, 6)),
        without("0", "channel", 6, (0,), GROUPNORM),
        "the 2 groups of '0' to be of one size, but 5 channels would be left. Keep a multiple of 2",
    ),
    "attribute": (
        Configured,
        layer("a", Setting(module="", attribute="num_heads")),
        "a Configured with the attribute 'num_heads', but it has none",
    ),
    "config entry": (
        Configured,
        layer("a", Setting(module="", attribute="config.num_heads")),
        "with the attribute 'config.num_heads', but it has none",
    ),
    "no config": (SmallCnn, without("conv1", "channel", 8, (0,), CONV1, settings=(Setting(module="",
        attribute="config.width"),)), "a SmallCnn with the attribute 'config.width'"),
    "no number": (
        Configured,
        layer("a", Setting(module="", attribute="config.label")),
        "'config.label' of '' to count 6 units of 1, but got a",
    ),
    "a flag": (Configured, layer("a", Setting(module="", attribute="flag")), "but got True"),
    "attribute too small": (
        Configured,
        layer("a", Setting(module="", attribute="both", per_unit=3)),
        "'both' of '' to count 6 units of 3, but got 12",
    ),
    "rewrite of a module with parameters": (
        SmallCnn,
        Rewrite(unit="conv1", in_channels=3, out_channels=8),
        r"'conv1' to be a shortcut without parameters, but this Conv2d holds weight, bias\. Was it rewritten before",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_explained_and_changes_nothing(case: str) -> None:
    make, edit, message = BAD[case]
    model = make().train()
    attributes = plain_attributes(model)
    with unchanged(model), pytest.raises(ValueError, match=message):
        apply_edits(model, [edit])
    assert plain_attributes(model) == attributes


def test_a_later_edit_that_fails_takes_the_earlier_back() -> None:
    model = CASES["shortcut"].build()
    attributes = plain_attributes(model)
    with unchanged(model), pytest.raises(ValueError, match="they do not fit"):
        apply_edits(model, [*CASES["shortcut"].edits, CASES["shortcut"].edits[1]])
    assert plain_attributes(model) == attributes


@pytest.mark.parametrize("keep", [(), (1, 0), (0, 0), (-1, 0), (0, 8)])
def test_units_that_cannot_stay_are_refused(keep: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError, match="at least one kept channel of 'conv1', as ascending numbers from 0 to 7"):
        Narrow(unit="conv1", kind="channel", of=8, keep=keep, group=CONV1)


@pytest.mark.parametrize("keep", [(), (1, 0), (0, 0), (-1, 0), (0, 8)])
def test_edits_that_were_changed_by_hand_are_checked_again(keep: tuple[int, ...]) -> None:
    model, edit = SmallCnn(), first_conv((1, 4)).model_copy(update={"keep": keep})
    attributes = plain_attributes(model)
    with unchanged(model), pytest.raises(ValueError, match="at least one kept channel of 'conv1', as ascending"):
        apply_edits(model, [edit])
    assert plain_attributes(model) == attributes


@pytest.mark.parametrize("change", [{"in_channels": 0}, {"stride": 0}, {"first": -1}, {"first": 5}, {"in_channels": 9}])
def test_shortcuts_without_room_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="Expected 'shortcut' to place at least 1 channel at stride 1 or more"):
        Rewrite(**{**REWRITE.model_dump(), **change})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64])
@pytest.mark.parametrize(("stride", "first"), [(1, 0), (2, 2), (3, 4)])
def test_channel_map_equals_the_padded_shortcut(dtype: torch.dtype, stride: int, first: int) -> None:
    x = (10 * torch.randn(2, 4, 7, 7)).to(dtype)
    if dtype.is_floating_point:
        x[0, 0, 0, 0], x[0, 1, 0, 0] = torch.nan, torch.inf
    expected = Padded(stride, first, 8 - 4 - first)(x)
    found = ChannelMap(4, 8, stride, first)(x)
    assert found.dtype == dtype
    assert torch.equal(found.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))
    assert torch.equal(
        ChannelMap(4, 8, stride, first).bfloat16()(x[0]).nan_to_num(nan=7.0), expected[0].nan_to_num(nan=7.0)
    )


def test_channel_map_is_free_differentiable_and_loaded_like_any_weight() -> None:
    shortcut, x = ChannelMap(4, 8, 2, 2), torch.randn(2, 4, 6, 6, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    weights = torch.randn(2, 8, 3, 3)
    (shortcut(x) * weights).sum().backward()
    (Padded()(twin) * weights).sum().backward()
    assert torch.equal(x.grad, twin.grad)
    assert count_macs(shortcut, x.detach()) == 0
    other = ChannelMap(4, 8, 2, 0)
    other.load_state_dict(shortcut.state_dict())
    assert torch.equal(other(x), shortcut(x))
    assert str(shortcut) == "ChannelMap(4, 8, stride=2)"
    assert not list(shortcut.parameters())


def test_channel_map_without_any_channel_left_is_zero_and_exports() -> None:
    model = nn.Sequential(ChannelMap(4, 8, 2, 2))
    apply_edits(model, [without("0", "channel", 8, (2, 3, 4, 5), (Slice(tensor="0.weight", dim=0),))])
    x = torch.full((1, 4, 4, 4), torch.inf)
    assert torch.equal(model(x), torch.zeros(1, 4, 2, 2))
    full = nn.Sequential(ChannelMap(4, 8, 2, 2))
    for net in (model, full):
        exported = torch.export.export(net.eval(), (torch.ones(1, 4, 4, 4),)).module()
        assert torch.equal(exported(x), net(x))


def test_removed_names_every_unit_as_in_the_model_that_the_plan_starts_from() -> None:
    plan = Plan(edits=(REWRITE, first_conv((1, 4)), head_edit(gone=(2,)), first_conv((0, 4), of=6)))
    assert plan.removed == {
        "channel": ("conv1[1]", "conv1[4]", "conv1[0]", "conv1[6]"),
        "head": ("blocks.1.attn[2]",),
    }
    assert plan.needed_tensors == ()


def test_removed_units_are_named_as_in_the_dense_model() -> None:
    edits = [
        first_conv((1, 4)),
        Remove(unit="blocks.0", kind="block"),
        head_edit(block=0, gone=(1,)),
        first_conv((0, 4), of=6),
        head_edit(block=0, gone=(1,), heads=3),
    ]
    found = removed_units(edits)
    assert [unit.name for unit in found if unit.kind == "channel"] == ["conv1[1]", "conv1[4]", "conv1[0]", "conv1[6]"]
    assert [unit.name for unit in found if unit.kind == "head"] == ["blocks.1.attn[1]", "blocks.1.attn[2]"]
    assert {unit.leaves for unit in found} == {"nothing"}
    assert shortened(unit.name for unit in found) == ["conv1[1, 4, 0, 6]", "blocks.0", "blocks.1.attn[1, 2]"]
    assert shortened(f"conv1[{i}]" for i in range(9)) == ["conv1[9 units]"]


def test_edits_that_do_not_follow_each_other_are_named_as_they_are() -> None:
    assert [u.name for u in removed_units([first_conv((1, 4)), first_conv((7,))])] == [
        "conv1[1]",
        "conv1[4]",
        "conv1[7]",
    ]


def test_plan_for_another_model_says_so_and_changes_nothing() -> None:
    plan = plan_for(CASES["convolution"].build(), [first_conv()], method="test")
    for other in (SmallCnn(in_channels=1), Upsampling(), tiny_vit()):
        with (
            unchanged(other),
            pytest.raises(
                ValueError, match=r"The plan removes conv1\[1, 4, 5\]; this model's tensors have other names or sizes"
            ),
        ):
            apply_plan(other, plan)


def test_plan_of_a_cnn_counts_what_is_left() -> None:
    model = CASES["convolution"].build()
    with unchanged(model):
        plan = plan_for(model, [first_conv()], method="test", example=maps()[:1])
    apply_plan(model, plan)
    assert plan.result.macs == count_macs(model, maps()[:1])
    assert plan.source.constructor is None


# The optimizer


def mask_of(applied: Any, dense: nn.Module) -> dict[str, Tensor]:
    """Ones where an entry of the dense model stayed."""
    masks = {name: torch.zeros_like(p) for name, p in dense.named_parameters()}
    for name, (new, _) in applied.added.items():
        index: Any = [torch.arange(size) for size in masks[name].shape]
        for cut in applied.cuts[new][1]:
            index[cut.dim] = index[cut.dim][cut.kept]
        masks[name][torch.meshgrid(*index, indexing="ij")] = 1
    return {name: mask if name in applied.added else torch.ones_like(mask) for name, mask in masks.items()}


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, mask: dict[str, Tensor] | None = None
) -> None:
    generator = torch.Generator().manual_seed(steps)
    for _ in range(steps):
        x = torch.randn(4, 3, 8, 8, generator=generator).double()
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.randint(0, 5, (4,), generator=generator)).backward()
        optimizer.step()
        if mask is not None:
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.mul_(mask[name])


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.01, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.001, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01, eps=1e-4),  # else it enlarges noise: a bias before BatchNorm
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_on_equals_training_a_masked_model(name: str) -> None:
    """Removed entries zeroed with their gradients, and everything else as it was: momentum, moments, steps."""
    narrowed, dense = (CASES["convolution"].build().train() for _ in range(2))
    ours, theirs = (OPTIMIZERS[name](m.parameters()) for m in (narrowed, dense))
    train(narrowed, ours, 3)
    train(dense, theirs, 3)
    applied = apply_edits(narrowed, [first_conv((1,)), first_conv((3, 4), of=7), second_conv()])
    update_optimizer(ours, applied)
    mask = mask_of(applied, dense)
    assert set(applied.cuts) == {new for new, _ in applied.added.values()}
    with torch.no_grad():
        for key, p in dense.named_parameters():
            p.mul_(mask[key])
    train(narrowed, ours, 4)
    train(dense, theirs, 4, mask)
    kept = [p[mask[key].bool()].view(narrowed.get_parameter(key).shape) for key, p in dense.named_parameters()]
    for expected, p in zip(kept, narrowed.parameters(), strict=True):
        assert torch.allclose(p, expected, rtol=1e-8, atol=1e-10)


def test_narrowed_parameters_keep_their_place_and_name_in_the_groups() -> None:
    model = CASES["convolution"].build()
    optimizer = torch.optim.Adam([
        {"params": [("a", model.head.weight), ("b", model.conv1.weight), ("c", model.bn2.bias)]},
        {"params": [(n, p) for n, p in model.conv2.named_parameters()]},
    ])  # fmt: skip
    update_optimizer(optimizer, apply_edits(model, [first_conv(), second_conv()]))
    held = [group["params"] for group in optimizer.param_groups]
    expected = [[model.head.weight, model.conv1.weight, model.bn2.bias], [model.conv2.weight]]
    assert all(a is b for x, y in zip(held, expected, strict=True) for a, b in zip(x, y, strict=True))
    assert [group["param_names"] for group in optimizer.param_groups] == [["a", "b", "c"], ["weight"]]
    assert not optimizer.state


def test_state_of_another_shape_is_dropped_and_training_goes_on() -> None:
    model = CASES["convolution"].build().train()
    optimizer = torch.optim.Adafactor(model.parameters(), 0.01)
    train(model, optimizer, 2)
    untouched = optimizer.state[model.head.bias]
    applied = apply_edits(model, [first_conv()])
    old = {name: optimizer.state[p] for name, p in applied.removed.items()}
    update_optimizer(optimizer, applied)
    assert model.conv2.weight not in optimizer.state
    assert optimizer.state[model.head.bias] is untouched
    gain = optimizer.state[model.bn1.weight]
    assert torch.equal(gain["variance"], old["bn1.weight"]["variance"][[0, 2, 3, 6, 7]])
    assert gain["step"] == old["bn1.weight"]["step"]
    train(model, optimizer, 2)
    assert set(optimizer.state) == set(model.parameters())


def test_what_replaces_a_narrowed_unit_joins_without_a_state() -> None:
    """A fitted replacement is cut from nothing, though it joins the group of the bias before it."""
    model = built(vit)()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(maps()[:, :1]).sum().backward()
    optimizer.step()
    before = dict(model.named_parameters())
    values = {"e0.slope": torch.rand(64), "e0.bias": torch.rand(64)}
    act = Slice(tensor="blocks.1.mlp.act.slope", dim=0), Slice(tensor="blocks.1.mlp.act.bias", dim=0)
    neurons = neuron_edit()
    edits: list[Edit] = [
        Replace(unit="blocks.1.mlp.act", kind="activation", leaves="slope_bias", tensors=tuple(values)),
        neurons.model_copy(update={"group": (*neurons.group, *act)}),
    ]
    applied = apply_edits(model, edits, values)
    update_optimizer(optimizer, applied)
    forward = model.blocks[1].mlp
    assert applied.added["blocks.1.mlp.act.slope"][1] is before["blocks.1.mlp.fc1.bias"]
    assert torch.equal(forward.act.slope, values["e0.slope"][list(neurons.keep)].double())
    assert {forward.fc1.bias, forward.fc1.weight, forward.fc2.weight} == set(applied.cuts)
    assert forward.act.slope not in optimizer.state
    assert "momentum_buffer" in optimizer.state[forward.fc1.bias]
    held = optimizer.param_groups[0]["params"]
    assert len(held) == len(set(held))
    assert set(held) == set(model.parameters())


# Depth and width together


def images(n: int = 8) -> Tensor:
    return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(2))


def width_of(model: nn.Module, block: int) -> Plan:
    return plan_for(model, [head_edit(block, (0, 2)), neuron_edit(block)], method="test")


def stirred_vit() -> nn.Module:
    return built(vit)().float()


def test_depth_after_width() -> None:
    model, fresh = stirred_vit(), stirred_vit()
    first = plan_for(model, [e for b in range(3) for e in (head_edit(b, (b,)), neuron_edit(b))], method="test")
    apply_plan(model, first)
    units = {unit.name: unit for unit in find_units(model, example_inputs=images(1))}
    assert units["blocks.0.attn"].params == sum(p.numel() for p in (*model.blocks[0].attn.parameters(),)) + 32
    second = plan_depth(
        model, remove={"attention": 1, "activation": 1, "block": 1}, batches=[images()], search="one_shot"
    )
    apply_plan(model, second)
    assert set((first + second).removed) == {"head", "neuron", "attention", "activation", "block"}
    both = first + second + merge(model)
    apply_plan(fresh, both)
    assert torch.equal(fresh(images()), model(images()))
    assert sum(p.numel() for p in fresh.parameters()) == both.result.params


def test_merged_equals_unmerged_on_a_narrowed_model() -> None:
    model = stirred_vit().double()
    apply_plan(model, width_of(model, 1))
    values = {"e0.slope": torch.rand(61), "e0.bias": torch.rand(61)}
    edit = Replace(unit="blocks.1.mlp.act", kind="activation", leaves="slope_bias", tensors=tuple(values))
    apply_edits(model, [edit], values)
    before = model(images().double())
    assert [type(e) for e in merge(model).edits] == [Merge]
    assert model.blocks[1].mlp.fc1.weight.shape == (16, 16)
    assert torch.allclose(model(images().double()), before, atol=1e-9)


def test_width_after_depth() -> None:
    model, fresh = stirred_vit(), stirred_vit()
    first = plan_for(
        model, [Remove(unit="blocks.0", kind="block"), Remove(unit="blocks.1.mlp", kind="mlp")], method="t"
    )
    apply_plan(model, first)
    second = plan_for(model, [head_edit(0, (1,)), neuron_edit(0), head_edit(1, (0,))], method="test")
    journal = apply_plan(model, second).journal
    apply_plan(fresh, first + second)
    assert torch.equal(fresh(images()), model(images()))
    names = [unit.name for unit in removed_units((first + second).edits)]
    assert {"blocks.1.attn[1]", "blocks.2.attn[0]"} <= set(names)
    undo(model, journal)
    expected = stirred_vit()
    apply_plan(expected, first)
    assert torch.equal(model(images()), expected(images()))


def test_replacements_are_fitted_anew_behind_a_narrowing() -> None:
    model, other = stirred_vit(), stirred_vit()
    first = width_of(model, 1)
    apply_plan(model, first)
    second = plan_depth(model, remove={"activation": 2}, batches=[images(16)])
    plan = first + second
    with torch.no_grad():
        other.head.weight.mul_(1.5)
    expected = copy.deepcopy(other)
    apply_plan(other, plan, refit=[images(16)])
    apply_plan(expected, first)
    apply_plan(expected, second, refit=[images(16)])
    assert torch.equal(other(images()), expected(images()))
    assert other.blocks[1].mlp.fc1.weight.shape[0] == 61


def test_what_went_is_told_in_short(tmp_path: Path) -> None:
    model, dense = stirred_vit(), stirred_vit()
    depth = Remove(unit="blocks.2.attn", kind="attention")
    plan = plan_for(model, [neuron_edit(), head_edit(gone=(0, 2)), depth], method="test")
    apply_plan(model, plan)
    text = compare(dense, model, images(2), plan=plan, pairs=2, warmup=0).to_markdown()
    assert "- neuron: 3 of 64 (5%): `blocks.1.mlp.fc1` 3 of 64\n- head: 2 of 4 (50%): `blocks.1.attn` 2 of 4\n" in text
    assert "- attention: `blocks.2.attn` (zero)" in text
    figure = plan.plot(tmp_path / "plan.png")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["Removed: attention 1 of 3", "Removed: neuron 3 of 64, head 2 of 4"]


def llama_neurons(index: int) -> Narrow:
    mlp = f"model.layers.{index}.mlp"
    rows = tuple(Slice(tensor=f"{mlp}.{name}.weight", dim=0) for name in ("gate_proj", "up_proj"))
    settings = (
        Setting(module=mlp, attribute="intermediate_size"),
        Setting(module="", attribute="config.intermediate_size"),
    )
    gone = tuple(range(index, index + 12))
    return without(f"{mlp}.gate_proj", "neuron", 48, gone, (*rows, reads(f"{mlp}.down_proj")), settings=settings)


def test_transformers_model_with_equal_layers_is_still_a_standard_one(tmp_path: Path) -> None:
    model = tiny_llama()
    plan = plan_for(model, [llama_neurons(i) for i in range(4)], method="test")
    applied = apply_plan(model, plan)
    assert model.config.intermediate_size == model.model.layers[3].mlp.intermediate_size == 36
    save_pruned(model, plan, tmp_path / "pruned")
    ids = tiny_inputs("llama")["input_ids"]
    for again in (type(model).from_pretrained(tmp_path / "pruned").eval(), load_pruned(tmp_path / "pruned")):
        assert torch.equal(again(input_ids=ids).logits, model(input_ids=ids).logits)
    second = plan_depth(model, remove={"attention": 1, "block": 1}, batches=[tiny_inputs("llama", 8)])
    deeper = apply_plan(model, second)
    fresh = tiny_llama()
    apply_plan(fresh, plan + second)
    assert torch.equal(fresh(input_ids=ids).logits, model(input_ids=ids).logits)
    undo(model, deeper.journal)
    undo(model, applied.journal)
    assert model.config.intermediate_size == 48
    assert torch.equal(model(input_ids=ids).logits, tiny_llama()(input_ids=ids).logits)


@pytest.mark.gpu
def test_what_was_taken_waits_on_the_cpu_and_returns_to_the_device() -> None:
    model = CASES["shortcut"].build().cuda()
    before = {name: (tensor, tensor.clone()) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    journal = apply_edits(model, CASES["shortcut"].edits).journal
    assert model.shortcut.weight.is_cuda
    journal.to_cpu()
    assert not any(tensor.is_cuda for entry in journal.entries for tensor in _held(entry))
    undo(model, journal)
    after = dict((*model.named_parameters(), *model.named_buffers()))
    assert all(after[name] is tensor and torch.equal(tensor, value) for name, (tensor, value) in before.items())
    assert all(tensor.is_cuda for tensor in after.values())


# Files


def test_saved_equals_reloaded(tmp_path: Path) -> None:
    model = tiny_vit(depth=3, num_heads=4).eval()
    plan = width_of(model, 1)
    apply_plan(model, plan)
    plan = plan + plan_for(model, [Remove(unit="blocks.0", kind="block")], method="test")
    apply_edits(model, plan.edits[-1:])
    again = load_pruned(save_pruned(model, plan, tmp_path / "pruned"))
    assert torch.equal(again(images()), model(images()))
    assert again.blocks[0].attn.num_heads == 2


@pytest.mark.parametrize("name", ["two groups of one tensor", "shortcut", "depthwise", "experts", "tied"])
def test_saved_equals_reloaded_into_a_dense_model(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = case.build()
    plan = plan_for(model, case.edits, method="test")
    apply_plan(model, plan)
    save_pruned(model, plan, tmp_path / "pruned")
    for fresh in (case.build(), case.build().to("meta")):
        again = load_pruned(tmp_path / "pruned", fresh)
        assert torch.equal(again(case.example()), model(case.example()))
        assert repr(again) == repr(model)
    if name == "tied":
        assert again.head.weight is again.embed.weight


@pytest.mark.slow
def test_a_new_process_gives_the_same_outputs(tmp_path: Path) -> None:
    case = CASES["shortcut"]
    model = case.build()
    plan = plan_for(model, case.edits, method="test")
    apply_plan(model, plan)
    save_pruned(model, plan, tmp_path / "pruned")
    here = Path(__file__).parent
    script = (
        f"import sys; sys.path[:0] = [{str(here)!r}, {str(here.parent)!r}]\n"
        "import torch; from narrow_cases import CASES; from prunerecover import load_pruned\n"
        "torch.set_num_threads(1); case = CASES['shortcut']; model = load_pruned(sys.argv[1], case.build())\n"
        "torch.save(model(case.example()), sys.argv[2])"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "pruned"), str(tmp_path / "out.pt")], check=True)
    assert torch.equal(torch.load(tmp_path / "out.pt", weights_only=True), model(case.example()))
