"""Narrowing follows forwards in unusual styles, or with unusual layouts of samples."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.models.quantization import resnet18

from prunerecover import Budget, apply_plan, find_groups, plan_depth, plan_width
from prunerecover.model.batches import ModelInputs, is_padding

LABELS = torch.arange(8) % 5


class Masked(nn.Module):
    """Attention with a causal mask in a buffer, as in CLIP's text tower."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(24, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 24))
        self.head = nn.Linear(24, 5)
        self.register_buffer("mask", torch.full((length, length), -torch.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, attn_mask=self.mask, need_weights=False)[0]
        return self.head((x + self.mlp(x))[:, -1])  # type: ignore[no-any-return]


class Fused(nn.Module):
    """Attention by the fused function, with a mask of any shape that the function takes."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(24, 72), nn.Linear(24, 24)
        self.num_heads = 2
        self.head = nn.Linear(24, 5)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, 12)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, self.mask)
        return self.head(x + self.out(mixed.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("length", [11, 12])  # 12 is the size of a head, too
def test_a_mask_in_a_buffer_leaves_heads_to_be_found(length: int) -> None:
    groups = find_groups(Masked(length), torch.randn(8, length, 24)).groups
    assert {(group.kind, group.size) for group in groups} == {("head", 2), ("neuron", 40)}
    assert plan_depth(Masked(length), remove={"mlp": 1}, batches=[torch.randn(8, length, 24)]).removed


@pytest.mark.parametrize("shape", [(12, 12), (2, 12, 12), (8, 1, 12, 12)])
def test_a_mask_of_any_shape_leaves_heads_to_be_found(shape: tuple[int, ...]) -> None:
    groups = find_groups(Fused(torch.zeros(shape)), torch.randn(8, 12, 24), kinds="head").groups
    assert [group.size for group in groups] == [2]


@pytest.mark.parametrize("name", ["h", "heads"])
def test_heads_are_counted_by_an_attribute_of_any_usual_name(name: str) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, name, 4)
            self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            shape = (*x.shape[:2], getattr(self, name), 4)
            q, k, v = (linear(x).view(shape).transpose(1, 2) for linear in (self.q, self.k, self.v))
            mixed = (q @ k.transpose(-2, -1) / 2).softmax(-1) @ v
            return x + self.out(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    network = nn.Sequential(Attention(), nn.Linear(16, 5))
    groups = find_groups(network, torch.randn(4, 6, 16), kinds="head").groups
    assert [[(setting.attribute, setting.per_unit) for setting in group.settings] for group in groups] == [[(name, 1)]]


def test_a_forward_that_asks_whether_tensors_are_equal_is_followed() -> None:
    class Enhancer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(33, 48), nn.ReLU(), nn.Linear(48, 33), nn.Sigmoid())
            self.register_buffer("window", torch.hann_window(64))

        def forward(self, x: Tensor) -> Tensor:
            spectrum = torch.stft(x, 64, 32, window=self.window, return_complex=True)
            masked = spectrum * self.net(spectrum.abs().transpose(1, 2)).transpose(1, 2)
            return torch.istft(masked, 64, 32, window=self.window)

    assert [group.size for group in find_groups(Enhancer(), torch.randn(4, 640)).groups] == [48]


def test_units_whose_values_are_asked_for_stay() -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return self.c(self.b(h) if torch.equal(h, h.relu()) else self.b(h).relu())  # type: ignore[no-any-return]

    assert [group.name for group in find_groups(Asking(), torch.randn(4, 4)).groups] == ["b"]


@pytest.mark.slow
def test_a_float_network_that_can_be_quantised_is_planned() -> None:
    network, x = resnet18(weights=None, num_classes=5, quantize=False).eval(), torch.randn(8, 3, 32, 32)
    assert find_groups(network, x).groups
    assert plan_depth(network, remove={"layer": 1}, batches=[x], search="one_shot").removed


class Checkpointed(nn.Sequential):
    """Stage that runs again while gradients flow."""

    reentrant: bool

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=self.reentrant)  # type: ignore[no-any-return]


def checkpointed(network: Any, reentrant: bool | None) -> Any:
    if reentrant is None:
        network.set_grad_checkpointing(True)
    else:
        network.layer2.__class__, network.layer2.reentrant = Checkpointed, reentrant
    return network


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [None, True, False])
def test_gradient_checkpointing_changes_no_plan(reentrant: bool | None) -> None:
    torch.manual_seed(0)
    network = timm.create_model("resnet10t", num_classes=5)
    batches = [(torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0)), LABELS)]
    wanted = plan_width(network, Budget(params=0.2), batches=batches)
    assert plan_width(checkpointed(network, reentrant), Budget(params=0.2), batches=batches).edits == wanted.edits


class OfPatches(nn.Module):
    """Patches of all images in a single tensor, with the numbers of their images, as in vision-language models."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.embed = nn.Linear(12, 16), nn.Embedding(20, 16)
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 5)

    def forward(self, tokens: Tensor, patches: Tensor, grid: Tensor) -> Tensor:
        images = torch.stack([own.mean(0) for own in self.patch(patches).split(grid.tolist())])
        x = self.embed(tokens) + images[:, None]
        return self.head(x + self.down(self.up(x).relu())).mean(1)  # type: ignore[no-any-return]


def patches(samples: int) -> list[dict[str, Tensor]]:
    """Eight samples in batches."""
    torch.manual_seed(0)
    tokens, rows, grid = torch.randint(0, 20, (8, 6)), torch.randn(32, 12), torch.tensor([4] * 8)
    parts = zip(tokens.split(samples), rows.split(4 * samples), grid.split(samples), strict=True)
    return [dict(zip(("tokens", "patches", "grid"), part, strict=True)) for part in parts]


def energy(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    loss: Tensor = model(**batch).square().mean()
    return loss


def test_rows_that_are_no_samples_need_batches_of_one_sample() -> None:
    model = OfPatches().eval()
    width = partial(plan_width, model, Budget(macs=0.2), loss=energy)
    for plan in (width, partial(plan_depth, model, remove={"mlp": 1})):
        assert plan(batches=patches(1)).removed
        with pytest.raises(ValueError, match="Rows of 'patches' are no samples: pass batches of one sample each, with"):
            plan(batches=patches(8))


N = 8
WAYS = ("first", "second", "in one", "in one, second")


class Encoder(nn.Module):
    """MLP over tokens, between a recurrent layer and a head, with samples in any of four layouts."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.embed = nn.Embedding(50, 12)
        self.recurrent = nn.GRU(12, 12, batch_first=way in ("first", "in one"))
        self.up, self.down = nn.Linear(12, 24), nn.Linear(24, 12)
        self.head = nn.Linear(12, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens if self.way in ("first", "in one") else tokens.t())
        x, _ = self.recurrent(x)
        laid = x.flatten(0, 1) if self.way.startswith("in one") else x
        x = x + self.down(self.up(laid).relu()).view(x.shape)
        last: Tensor = self.head(x[:, -1] if self.way in ("first", "in one") else x[-1])
        return last


def tokens(length: int) -> Tensor:
    return torch.randint(0, 50, (N, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("length", [N, 2 * N])  # also where positions and samples could be taken for each other
def test_one_network_in_four_layouts_has_one_plan(length: int) -> None:
    batches = [(tokens(length), torch.arange(N) % 5)]
    dense = Encoder("first").eval()
    wanted, *others = [plan_width(Encoder(way).eval(), Budget(params=0.2), batches=batches) for way in WAYS]
    pruned = copy.deepcopy(dense)
    apply_plan(pruned, wanted)
    for plan in others:
        assert plan.removed == wanted.removed
        other = copy.deepcopy(dense)
        apply_plan(other, plan)
        torch.testing.assert_close(other(batches[0][0]), pruned(batches[0][0]))


def test_padding_is_that_of_the_tokens_in_either_layout() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    inputs = ModelInputs(kwargs={"attention_mask": mask})
    assert torch.equal(is_padding(inputs, torch.zeros(2, 3)), mask == 0)
    assert torch.equal(is_padding(inputs, torch.zeros(3, 2)), (mask == 0).t())
