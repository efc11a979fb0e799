"""Models with hand-made groups, one per way in which units lie in tensors, and where removed units must be silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from cases.models.habits import tiny_vit
from cases.models.tiny import stir
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Edit, Narrow, Rewrite
from prunerecover.plan.groups import Setting, Slice
from prunerecover.plan.plan import Plan
from prunerecover.surgery.provenance import plan_for


@dataclass(frozen=True)
class Mask:
    """Entries that are set to `value` in what a module gives, or gets."""

    module: str
    dim: int
    indices: tuple[int, ...]
    of: str = "output"
    value: float = 0.0


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


def without(unit: str, kind: str, of: int, gone: tuple[int, ...], group: tuple[Slice, ...], **more: Any) -> Narrow:
    keep = tuple(i for i in range(of) if i not in gone)
    return Narrow(unit=unit, kind=kind, of=of, keep=keep, group=group, **more)


@contextmanager
def silenced(model: nn.Module, masks: tuple[Mask, ...]) -> Iterator[None]:
    """Run a dense model with some of its activations set to a value: what narrowing has to equal."""
    handles = []
    for mask in masks:

        def fill(x: Tensor, mask: Mask = mask) -> Tensor:
            return x.index_fill(mask.dim, torch.tensor(mask.indices), mask.value)

        module = get_module(model, mask.module)
        if mask.of == "input":
            handles.append(module.register_forward_pre_hook(lambda _, args, fill=fill: (fill(args[0]), *args[1:])))
        else:
            handles.append(module.register_forward_hook(lambda _, __, output, fill=fill: fill(output)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def built(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """In double precision and evaluation mode, with weights that matter and BatchNorm statistics off their start."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        model = stir(make(), scale=2.0).double()
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand_like(buffer))
        return model

    return build


def maps() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1)).double()


class SmallCnn(nn.Module):
    """Two convolutions with BatchNorm, and a linear that reads the flattened map."""

    def __init__(self, in_channels: int = 3, size: int = 4, classes: int = 5) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(in_channels, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.head = nn.Linear(6 * size * size, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.head(F.relu(self.bn2(self.conv2(x))).flatten(1))


CONV1 = (*norm("bn1"), Slice(tensor="conv1.weight", dim=0), Slice(tensor="conv1.bias", dim=0), reads("conv2"))


def first_conv(gone: tuple[int, ...] = (1, 4, 5), of: int = 8) -> Narrow:
    return without("conv1", "channel", of, gone, CONV1)


def second_conv(gone: tuple[int, ...] = (0, 5), of: int = 6, size: int = 4) -> Narrow:
    group = (*norm("bn2"), Slice(tensor="conv2.weight", dim=0), reads("head", span=size * size))
    return without("conv2", "channel", of, gone, group)


class Depthwise(nn.Module):
    """Two outputs per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn1 = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.depthwise, self.bn2 = nn.Conv2d(8, 16, 3, groups=8), nn.BatchNorm2d(16)
        self.point = nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.point(F.relu(self.bn2(self.depthwise(F.relu(self.bn1(self.conv(x)))))))


DEPTHWISE = (
    *norm("bn1"),
    *norm("bn2", span=2),
    Slice(tensor="conv.weight", dim=0),
    Slice(tensor="depthwise.weight", dim=0, span=2),
    Slice(tensor="depthwise.bias", dim=0, span=2),
    reads("point", span=2),
)


class Concatenated(nn.Module):
    """The second convolution's output enters twice, around the first one's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 6, 3)
        self.bn, self.point = nn.BatchNorm2d(16), nn.Conv2d(16, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        b = self.b(x)
        return self.point(F.relu(self.bn(torch.cat([b, self.a(x), b], 1))))


CONCATENATED_B = (
    Slice(tensor="b.weight", dim=0),
    Slice(tensor="b.bias", dim=0),
    *norm("bn", offsets=(0, 10)),
    reads("point", offsets=(0, 10)),
)
CONCATENATED_A = (  # once two of b's channels are gone on either side
    Slice(tensor="a.weight", dim=0),
    Slice(tensor="a.bias", dim=0),
    *norm("bn", offsets=(4,)),
    reads("point", offsets=(4,)),
)


class Padded(nn.Module):
    """Option A: every second position, channels among zeros."""

    def __init__(self, stride: int = 2, before: int = 2, after: int = 2) -> None:
        super().__init__()
        self.stride, self.padding = stride, (0, 0, 0, 0, before, after)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], self.padding)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.conv, self.bn = nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.shortcut, self.relu, self.head = Padded(), nn.ReLU(), nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.relu(self.bn(self.conv(x)) + self.shortcut(x)))


REWRITE = Rewrite(unit="shortcut", in_channels=4, out_channels=8, stride=2, first=2)
STEM = (Slice(tensor="stem.weight", dim=0), Slice(tensor="stem.bias", dim=0), reads("conv"), reads("shortcut"))
SUM = (*norm("bn"), Slice(tensor="conv.weight", dim=0), Slice(tensor="shortcut.weight", dim=0), reads("head"))


class Upsampling(nn.Module):
    """A transposed convolution, whose weight is (in, out), and one in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(3, 6, 3), nn.ConvTranspose2d(6, 8, 2, stride=2)
        self.grouped, self.point = nn.ConvTranspose2d(8, 8, 2, groups=4), nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.point(self.grouped(self.up(self.conv(x))))


UP_IN = (Slice(tensor="conv.weight", dim=0), Slice(tensor="conv.bias", dim=0), reads("up", dim=0))
UP_OUT = (  # a unit is a group of the grouped convolution: two channels
    Slice(tensor="up.weight", dim=1, span=2),
    Slice(tensor="up.bias", dim=0, span=2),
    reads("grouped", dim=0, span=2),
    Slice(tensor="grouped.bias", dim=0, span=2),
    reads("point", span=2),
)


def head_edit(block: int = 1, gone: tuple[int, ...] = (1,), heads: int = 4, width: int = 16) -> Narrow:
    """Attention heads of timm's fused query-key-value linear."""
    attn, span = f"blocks.{block}.attn", width // 4
    parts = tuple(part * heads * span for part in range(3))
    group = (
        Slice(tensor=f"{attn}.qkv.weight", dim=0, offsets=parts, span=span),
        Slice(tensor=f"{attn}.qkv.bias", dim=0, offsets=parts, span=span),
        reads(f"{attn}.proj", span=span),
    )
    settings = (
        Setting(module=attn, attribute="num_heads"),
        Setting(module=attn, attribute="attn_dim", per_unit=span),
    )
    return without(attn, "head", heads, gone, group, settings=settings)


def neuron_edit(block: int = 1, gone: tuple[int, ...] = (0, 7, 63), of: int = 64) -> Narrow:
    mlp = f"blocks.{block}.mlp"
    group = (
        Slice(tensor=f"{mlp}.fc1.weight", dim=0),
        Slice(tensor=f"{mlp}.fc1.bias", dim=0),
        reads(f"{mlp}.fc2"),
    )
    return without(f"{mlp}.fc1", "neuron", of, gone, group)


def vit() -> nn.Module:
    return tiny_vit(depth=3, num_heads=4)


class Experts(nn.Module):
    """Routed experts in fused 3-D parameters: gate and up (E, 2I, C), down (E, C, I)."""

    def __init__(self, experts: int = 5, width: int = 6, inner: int = 4) -> None:
        super().__init__()
        self.num_experts = experts
        self.router = nn.Linear(width, experts)
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * inner, width))
        self.down = nn.Parameter(torch.randn(experts, width, inner))
        self.hidden = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        assert weights.shape[-1] == self.num_experts
        gate, up = torch.einsum("nc,eic->nei", x, self.gate_up).chunk(2, -1)
        hidden = self.hidden(F.silu(gate) * up)
        return torch.einsum("ne,nei,eci->nc", weights, hidden, self.down)


ROUTED = (
    Slice(tensor="router.weight", dim=0),
    Slice(tensor="router.bias", dim=0),
    Slice(tensor="gate_up", dim=0),
    Slice(tensor="down", dim=0),
)
INNER = (Slice(tensor="gate_up", dim=1, offsets=(0, 4)), Slice(tensor="down", dim=2, makes=False))
EXPERT = without("router", "expert", 5, (0, 3), ROUTED, settings=(Setting(module="", attribute="num_experts"),))


class Tied(nn.Module):
    """Token embedding and head are one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens))


TIED = (Slice(tensor="embed.weight", dim=1), reads("head"))

CASES: dict[str, Case] = {
    "convolution": Case(built(SmallCnn), (first_conv(),), (Mask("bn1", 1, (1, 4, 5)),), maps),
    "flattened": Case(built(SmallCnn), (second_conv(),), (Mask("bn2", 1, (0, 5)),), maps),
    "twice": Case(
        built(SmallCnn), (first_conv((0, 2)), first_conv((0, 5), of=6)), (Mask("bn1", 1, (0, 1, 2, 7)),), maps
    ),
    "two groups of one tensor": Case(
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
    "experts": Case(
        built(Experts), (EXPERT,), (Mask("router", 1, (0, 3), value=-torch.inf),), lambda: maps()[0, 0, :, :6]
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
    return [entry.old] if isinstance(getattr(entry, "old", None), Tensor) else []


def bias_of(path: str) -> Slice:
    return Slice(tensor=f"{path}.bias", dim=0)


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
    group = (Slice(tensor=f"{name}.weight", dim=0), bias_of(name))
    return without(name, "neuron", 6, (0, 1), group, settings=settings)


def images(n: int = 8) -> Tensor:
    return torch.randn(n, 1, 8, 8, generator=torch.Generator().manual_seed(2))


def width_of(model: nn.Module, block: int) -> Plan:
    return plan_for(model, [head_edit(block, (0, 2)), neuron_edit(block)], method="test")


def stirred_vit() -> nn.Module:
    return built(vit)().float()
