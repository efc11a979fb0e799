"""Content of the groups in known networks."""

from __future__ import annotations

import pytest
import torch
import transformers
from cases.models.width import images
from cases.width.groups import found_in
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import Budget, apply_plan, plan_width
from prunerecover.graph.trace import trace
from prunerecover.model.batches import ModelInputs
from prunerecover.plan.edits import Rewrite
from prunerecover.plan.groups import Group
from prunerecover.width.groups.discovery import find_groups
from prunerecover.width.rewrites.padded_shortcuts import as_convolutions, find_padded_shortcuts


def group_named(name: str, family: str, kind: str = "") -> Group:
    return next(g for g in found_in(family).groups if g.name == name and g.kind in (kind or g.kind))


def test_a_language_model_of_real_width_is_watched_without_values() -> None:
    with torch.device("meta"):  # two layers of Llama-2-7B; their ids are more than half a million
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=2))
        inputs = {"input_ids": torch.zeros(1, 4, dtype=torch.long)}
    found = find_groups(model, inputs).groups
    layers = [f"model.layers.{i}" for i in range(2)]
    assert [(g.name, g.kind, g.size) for g in found] == [
        group
        for path in layers
        for group in ((f"{path}.self_attn.q_proj", "head", 32), (f"{path}.mlp.gate_proj", "neuron", 11008))
    ]
    assert parts(found[2]) == {
        f"{layers[1]}.self_attn.q_proj.weight": (0, (0,), 128, True),
        f"{layers[1]}.self_attn.k_proj.weight": (0, (0,), 128, True),
        f"{layers[1]}.self_attn.v_proj.weight": (0, (0,), 128, True),
        f"{layers[1]}.self_attn.o_proj.weight": (1, (0,), 128, False),
    }


def parts(group: Group) -> dict[str, tuple[int, tuple[int, ...], int, bool]]:
    return {s.tensor: (s.dim, s.offsets, s.span, s.makes) for s in group.slices}


class Chain(nn.Module):
    """Multiplies by raw matrices in turn."""

    def __init__(self, listed: bool) -> None:
        super().__init__()
        matrices = [nn.Parameter(torch.randn(a, b)) for a, b in ((3, 8), (8, 6), (6, 8), (8, 2))]
        if listed:
            self.matrices = nn.ParameterList(matrices)
        else:
            self.w0, self.w1, self.w2, self.w3 = matrices
        self.listed = listed

    def forward(self, x: Tensor) -> Tensor:
        for matrix in self.matrices if self.listed else (self.w0, self.w1, self.w2, self.w3):
            x = (x @ matrix).relu()
        return x


NAMES = {True: ["0.matrices", "0.matrices.1", "0.matrices.2"], False: ["0", "0.w1", "0.w2"]}


@pytest.mark.parametrize(("listed", "names"), NAMES.items())
def test_groups_of_separate_matrices_of_one_module_have_names_of_their_own(listed: bool, names: list[str]) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Chain(listed)), torch.rand(16, 3)
    assert [group.name for group in find_groups(model, x).groups] == names
    apply_plan(model, plan_width(model, Budget(params=0.4), batches=[x], importance="magnitude"))
    assert sum(p.numel() for p in model.parameters()) <= 0.6 * (24 + 48 + 48 + 16)


def test_padded_shortcuts_are_rewritten() -> None:
    found = found_in("option_a_resnet20")
    assert found.rewrites == (
        Rewrite(unit="layer2.0.shortcut", in_channels=16, out_channels=32, stride=2, first=8),
        Rewrite(unit="layer3.0.shortcut", in_channels=32, out_channels=64, stride=2, first=16),
    )
    wide = group_named("layer2.0.conv2", "option_a_resnet20")
    assert parts(wide)["layer2.0.shortcut.weight"] == (0, (0,), 1, True)
    assert parts(wide)["layer3.0.shortcut.weight"] == (1, (0,), 1, False)
    assert any("shortcut" in tap.module for tap in wide.taps)  # they carry units on, past the sum they enter


class Pads(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "ones":
            return F.pad(x, (0, 0, 0, 0, 1, 1), value=1.0)
        if self.how == "twice":
            return torch.cat([x, x], 1)
        if self.how == "scaled":
            return F.pad(2 * x, (0, 0, 0, 0, 0, 3))
        if self.how == "empty":
            return torch.zeros(x.shape[0], 9, *x.shape[2:])
        return F.pad(x[:, :, ::3, ::3], (0, 0, 0, 0, 1, 4))


@pytest.mark.parametrize("how", ["ones", "twice", "scaled", "empty"])
def test_other_modules_without_parameters_are_no_shortcuts(how: str) -> None:
    net = nn.Sequential(Pads(how), nn.ReLU())
    assert find_padded_shortcuts(trace(net, ModelInputs((images(7).float(),)))) == ()


def test_the_convolution_equals_the_shortcut() -> None:
    net = nn.Sequential(Pads("uneven"))
    (shortcut,) = find_padded_shortcuts(trace(net, ModelInputs((images(7).float(),))))
    assert shortcut == Rewrite(unit="0", in_channels=3, out_channels=8, stride=3, first=1)
    x, conv = images(10).float(), nn.Sequential(Pads("uneven"))
    as_convolutions(conv, [shortcut])
    torch.testing.assert_close(conv(x), net(x), atol=0, rtol=0)
