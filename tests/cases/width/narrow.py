"""Handmade groups of small networks, the edits to narrow them, and the entries to become zero."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from cases.models.habits import tiny_vit
from cases.width.masks import Mask, built, maps
from cases.width.narrow_models import Concatenated, Depthwise, Experts, Residual, SmallCnn, Tied, Upsampling
from torch import Tensor, nn

from prunerecover.plan.edits import Edit, Narrow, Rewrite
from prunerecover.plan.groups import Setting, Slice


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    edits: tuple[Edit, ...]
    masks: tuple[Mask, ...]
    example: Callable[[], Tensor]


def norm(path: str, **layout: Any) -> tuple[Slice, ...]:
    """The slices of a BatchNorm."""
    names = ("weight", "bias", "running_mean", "running_var")
    return tuple(Slice(tensor=f"{path}.{name}", dim=0, **layout) for name in names)


def reads(path: str, dim: int = 1, **layout: Any) -> Slice:
    return Slice(tensor=f"{path}.weight", dim=dim, makes=False, **layout)


def makes(path: str, dim: int = 0, **layout: Any) -> tuple[Slice, Slice]:
    """The slices of a layer's weight and bias."""
    return Slice(tensor=f"{path}.weight", dim=dim, **layout), Slice(tensor=f"{path}.bias", dim=0, **layout)


def without(unit: str, kind: str, of: int, gone: tuple[int, ...], group: tuple[Slice, ...], **more: Any) -> Narrow:
    keep = tuple(i for i in range(of) if i not in gone)
    return Narrow(unit=unit, kind=kind, of=of, keep=keep, group=group, **more)


CONV1 = (*norm("bn1"), *makes("conv1"), reads("conv2"))


def first_conv(gone: tuple[int, ...] = (1, 4, 5), of: int = 8) -> Narrow:
    return without("conv1", "channel", of, gone, CONV1)


def second_conv(gone: tuple[int, ...] = (0, 5), of: int = 6, size: int = 4) -> Narrow:
    group = (*norm("bn2"), Slice(tensor="conv2.weight", dim=0), reads("head", span=size * size))
    return without("conv2", "channel", of, gone, group)


DEPTHWISE = (
    *norm("bn1"),
    *norm("bn2", span=2),
    Slice(tensor="conv.weight", dim=0),
    *makes("depthwise", span=2),
    reads("point", span=2),
)


CONCATENATED_B = (*makes("b"), *norm("bn", offsets=(0, 10)), reads("point", offsets=(0, 10)))
# Once two of b's channels are gone on either side.
CONCATENATED_A = (*makes("a"), *norm("bn", offsets=(4,)), reads("point", offsets=(4,)))


REWRITE = Rewrite(unit="shortcut", in_channels=4, out_channels=8, stride=2, first=2)
STEM = (*makes("stem"), reads("conv"), reads("shortcut"))
SUM = (*norm("bn"), Slice(tensor="conv.weight", dim=0), Slice(tensor="shortcut.weight", dim=0), reads("head"))


UP_IN = (*makes("conv"), reads("up", dim=0))
UP_OUT = (  # a unit is a group of the grouped convolution: two channels
    *makes("up", dim=1, span=2),
    reads("grouped", dim=0, span=2),
    Slice(tensor="grouped.bias", dim=0, span=2),
    reads("point", span=2),
)


def head_edit(block: int = 1, gone: tuple[int, ...] = (1,), heads: int = 4, width: int = 16) -> Narrow:
    """Attention heads of timm's fused query-key-value linear."""
    attn, span = f"blocks.{block}.attn", width // 4
    parts = tuple(part * heads * span for part in range(3))
    group = (*makes(f"{attn}.qkv", offsets=parts, span=span), reads(f"{attn}.proj", span=span))
    settings = (
        Setting(module=attn, attribute="num_heads"),
        Setting(module=attn, attribute="attn_dim", per_unit=span),
    )
    return without(attn, "head", heads, gone, group, settings=settings)


def neuron_edit(block: int = 1, gone: tuple[int, ...] = (0, 7, 63), of: int = 64) -> Narrow:
    mlp = f"blocks.{block}.mlp"
    return without(f"{mlp}.fc1", "neuron", of, gone, (*makes(f"{mlp}.fc1"), reads(f"{mlp}.fc2")))


def vit() -> nn.Module:
    return tiny_vit(depth=3, num_heads=4)


ROUTED = (*makes("router"), Slice(tensor="gate_up", dim=0), Slice(tensor="down", dim=0))
INNER = (Slice(tensor="gate_up", dim=1, offsets=(0, 4)), Slice(tensor="down", dim=2, makes=False))
EXPERT = without("router", "expert", 5, (0, 3), ROUTED, settings=(Setting(module="", attribute="num_experts"),))


TIED = (Slice(tensor="embed.weight", dim=1), reads("head"))

CASES: dict[str, Case] = {
    "convolution": Case(built(SmallCnn), (first_conv(),), (Mask("bn1", 1, (1, 4, 5)),), maps),
    "twice": Case(
        built(SmallCnn), (first_conv((0, 2)), first_conv((0, 5), of=6)), (Mask("bn1", 1, (0, 1, 2, 7)),), maps
    ),
    "two groups of one tensor, flattened": Case(
        built(SmallCnn), (first_conv(), second_conv()), (Mask("bn1", 1, (1, 4, 5)), Mask("bn2", 1, (0, 5))), maps
    ),
    "depthwise": Case(
        built(Depthwise),
        (without("conv", "channel", 8, (2, 3), DEPTHWISE),),
        (Mask("bn1", 1, (2, 3)), Mask("bn2", 1, (4, 5, 6, 7))),
        maps,
    ),
    "concatenation": Case(
        built(Concatenated),
        (without("b", "channel", 6, (0, 3), CONCATENATED_B), without("a", "channel", 4, (1,), CONCATENATED_A)),
        (Mask("bn", 1, (0, 3, 7, 10, 13)),),
        maps,
    ),
    "shortcut": Case(
        built(Residual),
        (REWRITE, without("conv", "channel", 8, (0, 2, 5), SUM), without("stem", "channel", 4, (1, 2), STEM)),
        (Mask("stem", 1, (1, 2)), Mask("relu", 1, (0, 2, 5))),
        maps,
    ),
    "transposed": Case(
        built(Upsampling),
        (without("conv", "channel", 6, (5,), UP_IN), without("up", "channel", 4, (0, 2), UP_OUT)),
        (Mask("conv", 1, (5,)), Mask("up", 1, (0, 1, 4, 5)), Mask("grouped", 1, (0, 1, 4, 5))),
        maps,
    ),
    "heads": Case(
        built(vit), (head_edit(gone=(0, 2)),), (Mask("blocks.1.attn.proj", 2, (0, 1, 2, 3, 8, 9, 10, 11), "input"),),
        lambda: maps()[:, :1],
    ),
    "neurons": Case(
        built(vit), (neuron_edit(),), (Mask("blocks.1.mlp.act", 2, (0, 7, 63)),), lambda: maps()[:, :1]
    ),
    "neurons of experts": Case(
        built(Experts),
        (EXPERT, without("gate_up", "neuron", 4, (1, 2), INNER)),
        (Mask("router", 1, (0, 3), value=-torch.inf), Mask("hidden", 2, (1, 2))),
        lambda: maps()[0, 0, :, :6],
    ),
    "tied": Case(
        built(Tied), (without("embed", "channel", 6, (2, 5), TIED),), (Mask("embed", 1, (2, 5)),),
        lambda: torch.arange(11),
    ),
}  # fmt: skip


def plain_attributes(model: nn.Module) -> list[dict[str, Any]]:
    kinds = (int, float, str, tuple)
    return [{k: v for k, v in vars(m).items() if isinstance(v, kinds)} for m in model.modules()]


def tensors_held(entry: Any) -> list[Tensor]:
    return [part for part in entry.parts if isinstance(part, Tensor)]


def bias_of(path: str) -> Slice:
    return Slice(tensor=f"{path}.bias", dim=0)


def layer(name: str, *settings: Setting) -> Narrow:
    return without(name, "neuron", 6, (0, 1), makes(name), settings=settings)


def images(n: int = 8) -> Tensor:
    return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(2))


def stirred_vit() -> nn.Module:
    return built(vit)().float()
