"""Networks of sequences in plain forms: with the time first, convolutional, recurrent."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo.networks.network import CLASSES

FEATURES, WIDTH, HEADS, VOCABULARY = 16, 64, 4, 50


class SequenceFirst(nn.Module):
    """`nn.TransformerEncoder` with `(T, N, C)` inside, the default."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 128, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(features).transpose(0, 1)).mean(0))


class Translator(nn.Module):
    """An `nn.Transformer` of `(T, N, C)` with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.body = nn.Transformer(WIDTH, HEADS, 2, 2, 128, dropout=0.0)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = self.body.generate_square_subsequent_mask(target.shape[1])
        read, written = (self.words(tokens).transpose(0, 1) for tokens in (source, target))
        return self.head(self.body(read, written, tgt_mask=mask).transpose(0, 1))


class ResidualAttention(nn.Module):
    """A block of a vision tower, over `(T, N, C)`."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, HEADS)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class VisionTower(nn.Module):
    """Vision transformer with a permutation to `(T, N, C)`, a class token and a projection as a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, 8, bias=False)
        self.token = nn.Parameter(torch.randn(WIDTH) * 0.1)
        self.positions = nn.Parameter(torch.randn(17, WIDTH) * 0.1)
        self.blocks = nn.Sequential(ResidualAttention(), ResidualAttention())
        self.ln = nn.LayerNorm(WIDTH)
        self.proj = nn.Parameter(torch.randn(WIDTH, CLASSES) * 0.1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        token = self.token.to(x.dtype) + torch.zeros(x.shape[0], 1, x.shape[-1])
        x = torch.cat([token, x], 1) + self.positions
        return self.ln(self.blocks(x.permute(1, 0, 2)).permute(1, 0, 2)[:, 0]) @ self.proj


class Chomp(nn.Module):
    """Cuts the future positions of a padded convolution."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x[..., : -self.size].contiguous()


class TemporalBlock(nn.Module):
    """Two dilated causal convolutions, and a shortcut."""

    def __init__(self, made: int, width: int, dilation: int) -> None:
        super().__init__()
        padding = 2 * dilation
        layers: list[nn.Module] = []
        for size in (made, width):
            layers += [nn.Conv1d(size, width, 3, padding=padding, dilation=dilation), Chomp(padding), nn.ReLU()]
        self.net = nn.Sequential(*layers)
        self.downsample = nn.Conv1d(made, width, 1) if made != width else None

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.net(x) + (x if self.downsample is None else self.downsample(x)))


class TemporalConvolutions(nn.Module):
    """TCN that classifies by the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(TemporalBlock(FEATURES, 32, 1), TemporalBlock(32, 32, 2), TemporalBlock(32, 48, 4))
        self.head = nn.Linear(48, CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.net(features.transpose(1, 2))[..., -1])


class WaveNet(nn.Module):
    """Gated dilated convolutions with residual and skip outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, 32, 1)
        self.gates = nn.ModuleList(nn.Conv1d(32, 64, 3, padding=2**n, dilation=2**n) for n in range(3))
        self.rest = nn.ModuleList(nn.Conv1d(32, 64, 1) for _ in range(3))
        self.leave = nn.Sequential(nn.ReLU(), nn.Conv1d(32, 32, 1), nn.ReLU(), nn.Conv1d(32, 16, 1))

    def forward(self, wave: Tensor) -> Tensor:
        x, skipped = self.enter(wave), torch.zeros(())
        for gate, rest in zip(self.gates, self.rest, strict=True):
            a, b = gate(x).chunk(2, 1)
            kept, skip = rest(a.tanh() * b.sigmoid()).chunk(2, 1)
            x, skipped = (x + kept) / math.sqrt(2), skipped + skip
        return self.leave(skipped)


class ConvolutionsThenLstm(nn.Module):
    """CRNN that reads a line of text."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(), nn.MaxPool2d((2, 1))),
            *(nn.Conv2d(48, 64, (4, 3), padding=(0, 1)), nn.ReLU()),
        )
        self.recurrent = nn.LSTM(64, 32, num_layers=2, bidirectional=True)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        columns = self.features(image).squeeze(2).permute(2, 0, 1)
        return self.head(self.recurrent(columns)[0]).mean(0)


class SequenceToSequence(nn.Module):
    """Recurrent encoder, and a decoder that attends to its states."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 32)
        self.reader, self.writer = nn.GRU(32, 48, batch_first=True), nn.GRU(32, 48, batch_first=True)
        self.score = nn.Linear(48, 48, bias=False)
        self.mix, self.head = nn.Linear(96, 64), nn.Linear(64, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, last = self.reader(self.words(source))
        own, _ = self.writer(self.words(target), last)
        seen = (self.score(own) @ states.mT).softmax(-1) @ states
        return self.head(self.mix(torch.cat([own, seen], -1)).tanh())
