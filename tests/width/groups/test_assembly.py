"""Content of the groups in known networks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from cases.models.width import CifarResNet, images
from cases.width.groups import found_in
from cases.width.oracle import masked, narrowed, rewritten, thirty_percent
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover import Budget, apply_plan, plan_width
from prunerecover.graph.trace import trace
from prunerecover.model.batches import ModelInputs
from prunerecover.plan.groups import Group, Setting, Slice, Tap
from prunerecover.width.groups.assembly import named_apart
from prunerecover.width.groups.discovery import find_groups
from prunerecover.width.rewrites.padded_shortcuts import PaddedShortcut, find_padded_shortcuts


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


def test_a_unit_of_grouped_query_attention_is_a_key_value_head_with_its_queries() -> None:
    group = group_named("model.layers.1.self_attn.q_proj", "llama_gqa")
    path = "model.layers.1.self_attn"
    assert (group.kind, group.size, group.products) == ("head", 2, 2 * 9 * 9 * 8 * 2)
    assert parts(group) == {
        f"{path}.q_proj.weight": (0, (0,), 16, True),
        f"{path}.k_proj.weight": (0, (0,), 8, True),
        f"{path}.v_proj.weight": (0, (0,), 8, True),
        f"{path}.o_proj.weight": (1, (0,), 16, False),
    }
    assert group.taps == (Tap(f"{path}.o_proj", "input", -1, 0, 16),)
    assert group.settings == ()


def test_fused_queries_keys_and_values_have_three_offsets() -> None:
    group = group_named("blocks.0.attn.qkv", "deit")
    assert parts(group) == {
        "blocks.0.attn.qkv.weight": (0, (0, 48, 96), 16, True),
        "blocks.0.attn.qkv.bias": (0, (0, 48, 96), 16, True),
        "blocks.0.attn.proj.weight": (1, (0,), 16, False),
    }
    assert group.settings == (
        Setting(module="blocks.0.attn", attribute="num_heads"),
        Setting(module="blocks.0.attn", attribute="attn_dim", per_unit=16),
    )


def test_position_biases_of_windows_go_with_their_heads() -> None:
    group = group_named("layers.1.blocks.1.attn.qkv", "timm_swin")
    assert parts(group)["layers.1.blocks.1.attn.relative_position_bias_table"] == (1, (0,), 1, True)
    assert Setting(module="layers.1.blocks.1.attn", attribute="num_heads") in group.settings


def test_bert_settings_follow_its_heads() -> None:
    group = group_named("bert.encoder.layer.0.attention.self.query", "bert")
    path = "bert.encoder.layer.0.attention.self"
    assert set(group.settings) == {
        Setting(module=path, attribute="num_attention_heads"),
        Setting(module=path, attribute="all_head_size", per_unit=8),
    }


def test_gate_up_and_down_are_one_group_seen_before_down() -> None:
    group = group_named("model.layers.0.mlp.gate_proj", "qwen3")
    assert {s.tensor.split(".")[-2]: (s.dim, s.makes) for s in group.slices} == {
        "gate_proj": (0, True),
        "up_proj": (0, True),
        "down_proj": (1, False),
    }
    assert group.taps == (Tap("model.layers.0.mlp.down_proj", "input", -1),)


@pytest.mark.slow
def test_neurons_with_two_readers_are_seen_where_they_are_made() -> None:
    group = group_named("roi_heads.box_head.fc7", "faster_rcnn")
    assert group.taps == (Tap("roi_heads.box_head.fc7", "output", -1),)


def test_shared_experts_are_neurons_and_routed_ones_are_not() -> None:
    names = [g.name for g in found_in("qwen2_moe").groups if g.kind == "neuron"]
    assert names == ["model.layers.0.mlp.shared_expert.gate_proj", "model.layers.1.mlp.gate_proj"]


@pytest.mark.slow
def test_a_flattened_map_has_a_span_of_its_positions() -> None:
    group = next(g for g in found_in("vgg").groups if "classifier.0.weight" in parts(g) and g.kind == "channel")
    assert parts(group)["classifier.0.weight"] == (1, (0,), 4, False)


def test_concatenated_channels_have_offsets() -> None:
    group = group_named("features.denseblock1.denselayer2.conv2", "densenet")
    assert parts(group)["features.transition1.conv.weight"] == (1, (8 + 6,), 1, False)
    assert group.taps == (Tap("features.denseblock1.denselayer2.conv2"),)


def test_residual_channels_are_seen_at_the_norm_of_every_addend() -> None:
    group = group_named("layer2.0.conv3", "bottlenecks")
    assert [tap.module for tap in group.taps] == ["layer2.0.bn3", "layer2.0.downsample.1", "layer2.1.bn3"]


def test_depthwise_channels_are_seen_last_and_gates_not_at_all() -> None:
    group = group_named("features.2.0.block.0.0", "efficientnet")
    assert "features.2.0.block.2.fc2.weight" in parts(group)
    assert [tap.module for tap in group.taps] == ["features.2.0.block.1.1"]


def test_a_unit_of_a_grouped_convolution_is_a_group() -> None:
    group = group_named("layer2.0.conv1", "resnext")
    assert group.size == 4
    assert parts(group)["layer2.0.conv2.weight"] == (0, (0,), 16, True)
    assert group.settings == (Setting(module="layer2.0.conv2", attribute="groups"),)


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


@pytest.mark.parametrize(
    ("listed", "names"), [(True, ["0.matrices", "0.matrices.1", "0.matrices.2"]), (False, ["0", "0.w1", "0.w2"])]
)
def test_groups_of_separate_matrices_of_one_module_have_names_of_their_own(listed: bool, names: list[str]) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Chain(listed)), torch.rand(16, 3)
    assert [group.name for group in find_groups(model, x).groups] == names
    apply_plan(model, plan_width(model, Budget(params=0.4), batches=[x], importance="magnitude"))
    assert sum(p.numel() for p in model.parameters()) <= 0.6 * (24 + 48 + 48 + 16)


def test_groups_of_one_matrix_are_told_apart_by_where_they_begin() -> None:
    """Also where the same places of another matrix make groups, too."""

    def group(tensor: str, *offsets: int) -> Group:
        return Group(tensor, "neuron", 6, (Slice(tensor=tensor, dim=0, offsets=offsets),))

    made = [group("m.a", 0), group("m.a", 6), group("m.b", 0), group("m.b", 6), group("m.b", 6), group("w", 0)]
    names = ["m", "m:6", "m.b", "m.b:6", "m.b:7", "w"]
    assert [group.name for group in named_apart(made)] == names


def test_padded_shortcuts_are_rewritten() -> None:
    found = found_in("option_a_resnet20")
    assert found.rewrites == (
        PaddedShortcut("layer2.0.shortcut", 16, 32, 2, 8),
        PaddedShortcut("layer3.0.shortcut", 32, 64, 2, 16),
    )
    wide = group_named("layer2.0.conv2", "option_a_resnet20")
    assert parts(wide)["layer2.0.shortcut.weight"] == (0, (0,), 1, True)
    assert parts(wide)["layer3.0.shortcut.weight"] == (1, (0,), 1, False)
    assert any("shortcut" in tap.module for tap in wide.taps)  # they carry units on, past the sum they enter


@pytest.mark.data
def test_rewritten_shortcuts_keep_the_outputs_of_trained_weights(data_root: Path) -> None:
    from safetensors.torch import load_file

    net = CifarResNet()
    net.load_state_dict(load_file(data_root / "models" / "resnet20_cifar10" / "model.safetensors"))
    net.eval()
    found = find_groups(net, images(32).float())
    x = images(32, 4).float()
    torch.testing.assert_close(rewritten(net, found)(x), net(x))
    keep = thirty_percent(found)
    torch.testing.assert_close(narrowed(net, found, keep)(x), masked(net, found, keep)(x), atol=1e-4, rtol=1e-4)


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
    assert shortcut == PaddedShortcut("0", 3, 8, 3, 1)
    x = images(10).float()
    torch.testing.assert_close(shortcut.as_conv()(x), net(x), atol=0, rtol=0)
