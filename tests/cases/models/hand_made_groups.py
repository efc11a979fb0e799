"""Small networks with handwritten groups, and the same networks built narrower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.plan.groups import Group, Setting, Slice, Tap

CLASSES = 4


class Block(nn.Module):
    def __init__(self, width_in: int, inner: int, width: int, stride: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, inner, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.act = act(inplace=True)
        self.shortcut = nn.Conv2d(width_in, width, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.act(self.bn1(self.conv1(x)))))
        return self.act(y + self.shortcut(x))


class ResNet(nn.Module):
    """CIFAR ResNet with padded shortcuts as 1x1 convolutions, and a separate argument for every width."""

    def __init__(
        self,
        widths: Sequence[int] = (16, 32, 64),
        inner: Mapping[str, int] | None = None,
        blocks: int = 3,
        classes: int = 10,
        act: type[nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.act = act(inplace=True)
        width_in = widths[0]
        for stage, width in enumerate(widths):
            made = []
            for i in range(blocks):
                name = f"layer{stage + 1}.{i}.conv1"
                made.append(Block(width_in, (inner or {}).get(name, width), width, 1 + (stage > 0 and i == 0), act))
                width_in = width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*made))
        self.stages = len(widths)
        self.linear = nn.Linear(width_in, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn1(self.conv1(x)))
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.linear(x.mean((2, 3)))


def normed(conv: str, norm: str) -> tuple[Slice, ...]:
    names = (f"{conv}.weight", *(f"{norm}.{t}" for t in ("weight", "bias", "running_mean", "running_var")))
    return tuple(Slice(tensor=name, dim=0) for name in names)


def reads(*names: str) -> tuple[Slice, ...]:
    return tuple(Slice(tensor=f"{name}.weight", dim=1, makes=False) for name in names)


def resnet_groups(model: ResNet) -> tuple[Group, ...]:
    """Return a group per block for inner channels, and a group per stage for residual sums."""
    groups = []
    for stage in range(1, model.stages + 1):
        blocks = list(getattr(model, f"layer{stage}"))
        own = [f"layer{stage}.{i}" for i in range(len(blocks))]
        for path, block in zip(own, blocks, strict=True):
            slices = (*normed(f"{path}.conv1", f"{path}.bn1"), *reads(f"{path}.conv2"))
            size = block.conv1.out_channels
            groups.append(Group(f"{path}.conv1", "channel", size, slices, (Tap(f"{path}.bn1"),)))
        first = () if stage > 1 else normed("conv1", "bn1")
        rewritten = (Slice(tensor=f"layer{stage}.0.shortcut.weight", dim=0),) if stage > 1 else ()
        readers = [f"{path}.conv1" for path in own[stage > 1 :]]
        last = stage == model.stages
        readers += ["linear"] if last else [f"layer{stage + 1}.0.conv1", f"layer{stage + 1}.0.shortcut"]
        makers = [part for path in own for part in normed(f"{path}.conv2", f"{path}.bn2")]
        taps = [Tap(f"{path}.bn2") for path in own] + [Tap("bn1" if stage == 1 else f"layer{stage}.0.shortcut")]
        name = "conv1" if stage == 1 else f"layer{stage}.0.conv2"
        size = blocks[0].conv2.out_channels
        slices = (*first, *makers, *rewritten, *reads(*readers))
        groups.append(Group(name, "channel", size, slices, tuple(taps)))
    return tuple(groups)


def narrower_resnet(model: ResNet, kept: Mapping[str, int], blocks: int) -> ResNet:
    """The same class with as many channels as are kept."""
    names = ["conv1", *(f"layer{s}.0.conv2" for s in range(2, model.stages + 1))]
    sizes = {group.name: group.size for group in resnet_groups(model)} | dict(kept)
    return ResNet([sizes[n] for n in names], sizes, blocks, model.linear.out_features)


def small_resnet(**kwargs: object) -> ResNet:
    """Return two stages of a block each, 6 and 10 channels, with changed statistics; eval mode."""
    torch.manual_seed(0)
    settings = {"widths": (6, 10), "inner": {"layer1.0.conv1": 5}, "blocks": 1, "classes": CLASSES}
    model = ResNet(**{**settings, **kwargs})
    return unsettled(model)


def unsettled(model: nn.Module) -> nn.Module:
    """Move norms off the initial values, to reveal forgotten norms; eval mode."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
                for name in ("weight", "bias", "running_mean", "running_var"):
                    tensor = getattr(module, name)
                    tensor.add_(0.3 * torch.rand(tensor.shape, generator=generator))
    return model.eval()


def images(n: int = 24, size: int = 8, channels: int = 3, batch: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Return labelled images with brightness by class, in batches; class sizes differ."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (n,), generator=generator)
    pixels = torch.randn(n, channels, size, size, generator=generator) + labels.view(-1, 1, 1, 1) / 2
    return list(zip(pixels.split(batch), labels.split(batch), strict=True))


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


class Separable(nn.Module):
    """Pointwise, depthwise, pointwise, as in MobileNetV2; then a flattened map read by a linear."""

    def __init__(self, inner: int = 6, outer: int = 4) -> None:
        super().__init__()
        self.expand = nn.Conv2d(3, inner, 1)
        self.depthwise = nn.Conv2d(inner, inner, 3, 2, 1, groups=inner)
        self.project = nn.Conv2d(inner, outer, 1)
        self.linear = nn.Linear(outer * 16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.project(self.depthwise(self.expand(x)).relu()).flatten(1))


def separable_groups(inner: int = 6, outer: int = 4) -> tuple[Group, ...]:
    made = [Slice(tensor=f"{m}.{t}", dim=0) for m in ("expand", "depthwise") for t in ("weight", "bias")]
    settings = tuple(Setting(module="depthwise", attribute=a) for a in ("groups", "in_channels", "out_channels"))
    projected = (Slice(tensor="project.weight", dim=0), Slice(tensor="project.bias", dim=0))
    flattened = Slice(tensor="linear.weight", dim=1, span=16, makes=False)
    return (
        Group("expand", "channel", inner, (*made, *reads("project")), (Tap("depthwise"),), settings),
        Group("project", "channel", outer, (*projected, flattened), (Tap("linear", of="input", dim=-1, span=16),)),
    )


def vit_groups(model: nn.Module) -> tuple[Group, ...]:
    """The heads and the neurons of every block of a timm ViT."""
    groups = []
    tokens = model.pos_embed.shape[1]
    for i, block in enumerate(model.blocks):
        path, heads = f"blocks.{i}", block.attn.num_heads
        span = block.attn.qkv.out_features // heads // 3
        fused = {"offsets": tuple(j * heads * span for j in range(3)), "span": span}
        made = (Slice(tensor=f"{path}.attn.qkv.{t}", dim=0, **fused) for t in ("weight", "bias"))
        read = Slice(tensor=f"{path}.attn.proj.weight", dim=1, span=span, makes=False)
        tap = Tap(f"{path}.attn.proj", of="input", dim=-1, span=span)
        setting = Setting(module=f"{path}.attn", attribute="num_heads")
        products = 2 * tokens * tokens * span
        head = Group(f"{path}.attn.qkv", "head", heads, (*made, read), (tap,), (setting,), products=products)
        hidden = (Slice(tensor=f"{path}.mlp.fc1.{t}", dim=0) for t in ("weight", "bias"))
        neurons = (*hidden, *reads(f"{path}.mlp.fc2"))
        taps = (Tap(f"{path}.mlp.act", dim=-1),)
        groups += [head, Group(f"{path}.mlp.fc1", "neuron", block.mlp.fc1.out_features, neurons, taps)]
    return tuple(groups)


def narrow_vit(model: nn.Module, kept: Mapping[str, int]) -> nn.Module:
    """Give the blocks new linears of the kept size, in place."""
    for i, block in enumerate(model.blocks):
        attn, mlp = block.attn, block.mlp
        heads = kept.get(f"blocks.{i}.attn.qkv", attn.num_heads)
        neurons = kept.get(f"blocks.{i}.mlp.fc1", mlp.fc1.out_features)
        dim, span = attn.qkv.in_features, attn.qkv.out_features // attn.num_heads // 3
        attn.qkv, attn.proj = nn.Linear(dim, 3 * heads * span), nn.Linear(heads * span, dim)
        attn.num_heads, attn.attn_dim = heads, heads * span
        mlp.fc1, mlp.fc2 = nn.Linear(dim, neurons), nn.Linear(neurons, dim)
    return model
