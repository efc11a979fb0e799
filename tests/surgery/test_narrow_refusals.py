"""Refusals of narrowing give the reason, and change nothing; narrowed models are saved, reloaded and told of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases.engine import unchanged
from cases.models.habits import tiny_vit
from cases.width.masks import maps
from cases.width.narrow import (
    CASES,
    CONV1,
    REWRITE,
    bias_of,
    first_conv,
    head_edit,
    layer,
    plain_attributes,
    reads,
    tensors_held,
    without,
)
from cases.width.narrow_models import Configured, Depthwise, Experts, SmallCnn, Tied, Upsampling
from pydantic import ValidationError
from torch import nn

from prunerecover import load_pruned, save_pruned
from prunerecover.apply import apply_plan
from prunerecover.cost.macs import count_macs
from prunerecover.plan.edits import Edit, Narrow, Remove, Rewrite
from prunerecover.plan.groups import Setting, Slice
from prunerecover.plan.removed_units import removed_units, shortened
from prunerecover.surgery.apply_edits import apply_edits, undo
from prunerecover.surgery.provenance import plan_for


def channels(*group: Slice, unit: str = "conv1", of: int = 8, **more: Any) -> Narrow:
    """Removal of the first channel from tensors."""
    return without(unit, "channel", of, (0,), group, **more)


def part(tensor: str, dim: int = 0, **layout: Any) -> Slice:
    return Slice(tensor=tensor, dim=dim, **layout)


def of_bias(of: int = 8, dim: int = 0, **layout: Any) -> Narrow:
    return channels(part("conv1.bias", dim, **layout), of=of)


def counted(attribute: str, **more: Any) -> Narrow:
    return layer("a", Setting(module="", attribute=attribute, **more))


def all_but(tensor: str) -> Narrow:
    return channels(*(each for each in CONV1 if each.tensor != tensor))


def group_norm() -> nn.Module:
    return nn.Sequential(nn.GroupNorm(2, 6))


WIDTH = (Setting(module="", attribute="config.width"),)
OVERLAPPING = (part("embed.weight", 1), reads("head", offsets=(1,)))
BAD: dict[str, tuple[Callable[[], nn.Module], Edit, str]] = {
    "no module": (SmallCnn, channels(reads("conv9")), r"but the model \(SmallCnn\) has no"),
    "no tensor": (SmallCnn, channels(part("conv1.gain")), r"or buffer at 'conv1\.gain', but conv1 .* has none called"),
    "no tensor at the top": (SmallCnn, channels(part("gain")), r"or buffer at 'gain', but the model \(.*\) has none"),
    "no bias": (SmallCnn, channels(bias_of("conv2"), of=6), "none called 'bias'"),
    "dimension": (SmallCnn, of_bias(dim=1), r"a dimension of 'conv1\.bias' \(8,\), but 'conv1' names 1"),
    "negative dimension": (SmallCnn, of_bias(dim=-1), "but 'conv1' names -1"),
    "too many units": (SmallCnn, first_conv((0,), of=9), r"Expected 9 units of 1 in 'bn1\.weight' \(8,\) along dim"),
    "offset": (SmallCnn, of_bias(offsets=(1,)), r"from \[1\] on, but they do not fit"),
    "negative offset": (SmallCnn, of_bias(4, offsets=(-1,)), r"from \[-1\] on, but they do not fit"),
    "no offset": (SmallCnn, of_bias(4, offsets=()), r"from \[\] on, but they do not fit"),
    "span": (SmallCnn, of_bias(span=0), "8 units of 0 in"),
    "overlap": (SmallCnn, of_bias(4, offsets=(0, 2)), "to lie apart, .* begins at 2, inside the one from 0 to 3"),
    "overlap under two names": (Tied, channels(*OVERLAPPING, of=3), "one begins at 1, inside the one from 0 to 2"),
    "bias forgotten": (SmallCnn, all_but("conv1.bias"), r"'conv1' to keep .* got weight 7, bias 8\. Name all"),
    "statistics forgotten": (SmallCnn, all_but("bn1.running_var"), "'bn1' .* bias 7, running_mean 7, running_var 8"),
    "linear": (Experts, channels(part("router.weight"), of=5), "'router' to keep one length, but got weight 4, bias 5"),
    "uneven groups": (
        Depthwise,
        channels(part("depthwise.weight"), bias_of("depthwise"), of=16),
        r"the convolution 'depthwise' to keep equally many channels or none, but \[1, 2, 2, 2, 2, 2, 2, 2\] would",
    ),
    "group norm": (
        group_norm,
        channels(part("0.weight"), bias_of("0"), of=6),
        "the 2 groups of '0' to be of one size, but 5 channels would be left. Keep a multiple of 2",
    ),
    "attribute": (Configured, counted("num_heads"), "a Configured with the attribute 'num_heads', but it has none"),
    "config entry": (Configured, counted("config.num_heads"), "the attribute 'config.num_heads', but it has none"),
    "no config": (SmallCnn, channels(*CONV1, settings=WIDTH), "a SmallCnn with the attribute 'config.width'"),
    "no number": (Configured, counted("config.label"), "'config.label' of '' to count 6 units of 1, but got a"),
    "a flag": (Configured, counted("flag"), "but got True"),
    "attribute too small": (Configured, counted("both", per_unit=3), "'both' of '' to count 6 units of 3, but got 12"),
    "rewrite of a module with parameters": (
        SmallCnn,
        Rewrite(unit="conv1", in_channels=3, out_channels=8),
        r"'conv1' to be a shortcut without parameters, but this Conv2d holds weight, bias\. Was the plan applied",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_explained_and_changes_nothing(case: str) -> None:
    make, edit, message = BAD[case]
    model = make().train()
    attributes = plain_attributes(model)
    with unchanged(model), pytest.raises(ValueError, match=message):
        apply_edits(model, [edit])
    assert plain_attributes(model) == attributes


@pytest.mark.parametrize("keep", [(), (1, 0), (0, 0), (-1, 0), (0, 8)])
def test_units_that_cannot_stay_are_refused_also_after_a_change_by_hand(keep: tuple[int, ...]) -> None:
    message = "at least one kept channel of 'conv1', as ascending numbers from 0 to 7"
    with pytest.raises(ValidationError, match=message):
        Narrow(unit="conv1", kind="channel", of=8, keep=keep, group=CONV1)
    model, edit = SmallCnn(), first_conv((1, 4)).model_copy(update={"keep": keep})
    with unchanged(model), pytest.raises(ValueError, match=message):
        apply_edits(model, [edit])


@pytest.mark.parametrize("change", [{"in_channels": 0}, {"stride": 0}, {"first": -1}, {"first": 5}, {"in_channels": 9}])
def test_shortcuts_without_room_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="Expected 'shortcut' to place at least 1 channel at stride 1 or more"):
        Rewrite(**{**REWRITE.model_dump(), **change})


def test_plan_for_another_model_says_so_and_changes_nothing() -> None:
    plan = plan_for(CASES["convolution"].build(), [first_conv()], method="test")
    for other in (SmallCnn(in_channels=1), Upsampling(), tiny_vit()):
        match = r"The plan removes conv1\[1, 4, 5\]; this model's tensors have other names or sizes"
        with unchanged(other), pytest.raises(ValueError, match=match):
            apply_plan(other, plan)


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
    found = removed_units([first_conv((1, 4)), first_conv((7,))])
    assert [unit.name for unit in found] == ["conv1[1]", "conv1[4]", "conv1[7]"]


def test_plan_of_a_cnn_counts_what_is_left() -> None:
    model = CASES["convolution"].build()
    with unchanged(model):
        plan = plan_for(model, [first_conv()], method="test", example=maps()[:1])
    apply_plan(model, plan)
    assert plan.result.macs == count_macs(model, maps()[:1])
    assert plan.source.constructor is None


@pytest.mark.gpu
def test_what_was_taken_waits_on_the_cpu_and_returns_to_the_device() -> None:
    model = CASES["shortcut"].build().cuda()
    before = {name: (tensor, tensor.clone()) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    journal = apply_edits(model, CASES["shortcut"].edits).journal
    assert model.shortcut.weight.is_cuda
    journal.to_cpu()
    assert not any(tensor.is_cuda for entry in journal.entries for tensor in tensors_held(entry))
    undo(model, journal)
    after = dict((*model.named_parameters(), *model.named_buffers()))
    assert all(after[name] is tensor and torch.equal(tensor, value) for name, (tensor, value) in before.items())
    assert all(tensor.is_cuda for tensor in after.values())


@pytest.mark.parametrize("name", ["shortcut", "neurons of experts", "tied"])
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
