"""Small networks of further kinds: explicit attention, tables, recurrence, several inputs and outputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo.networks.hard_convolutions import conv
from benchmarks.zoo.networks.network import CLASSES

WIDTH, VOCABULARY = 48, 50


class EinsumAttention(nn.Module):
    """Heads in the shapes of the weights, products by einsum."""

    def __init__(self, heads: int = 4, size: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(12, WIDTH)
        self.q, self.k, self.v = (nn.Parameter(0.1 * torch.randn(WIDTH, heads, size)) for _ in range(3))
        self.out = nn.Parameter(0.1 * torch.randn(heads, size, WIDTH))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        q, k, v = (torch.einsum("btc,chd->bhtd", x, weight) for weight in (self.q, self.k, self.v))
        scores = torch.einsum("bhtd,bhsd->bhts", q, k).softmax(-1)
        x = x + torch.einsum("bhtd,hdc->btc", torch.einsum("bhts,bhsd->bhtd", scores, v), self.out)
        return self.head((x + self.mlp(x)).mean(1))


class Encoder(nn.Module):
    """PyTorch's own encoder layers and a parameter as class token."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.embed, self.token = nn.Linear(12, WIDTH), nn.Parameter(torch.zeros(1, 1, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 96, batch_first=True, norm_first=norm_first)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], 1)
        return self.head(self.layers(x)[:, 0])


class SwiGlu(nn.Module):
    """A gated MLP whose two halves are a single weight, and another with two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.packed, self.down = nn.Linear(12, 128), nn.Linear(64, WIDTH)
        self.gate, self.up, self.out = nn.Linear(WIDTH, 96), nn.Linear(WIDTH, 96), nn.Linear(96, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.packed(x).chunk(2, -1)
        x = self.down(F.silu(gate) * value)
        return self.out(F.silu(self.gate(x)) * self.up(x)).mean(1)


class GroupedLinear(nn.Module):
    """A linear layer per group of features, by view and a batched product."""

    def __init__(self, groups: int = 4) -> None:
        super().__init__()
        self.groups = groups
        self.enter, self.leave = nn.Linear(12, 64), nn.Linear(128, CLASSES)
        self.weight = nn.Parameter(0.1 * torch.randn(groups, 16, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.enter(x))
        parts = torch.einsum("btgi,gio->btgo", x.view(*x.shape[:2], self.groups, -1), self.weight)
        return self.leave(F.relu(parts.flatten(2))).mean(1)


class Recurrent(nn.Module):
    """Convolutions over time before an LSTM, whose outputs a linear layer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv1d(12, 64, 3, padding=1), nn.ReLU(), nn.Conv1d(64, 32, 3, padding=1), nn.ReLU())
        )
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.lstm(self.features(x.transpose(1, 2)).transpose(1, 2))
        return self.head(x[:, -1])


class Gru(nn.Module):
    """Words by a table, a GRU in both directions, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.gru = nn.Embedding(VOCABULARY, 32), nn.GRU(32, 24, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.gru(self.table(tokens))[0].mean(1))


class TiedTables(nn.Module):
    """Words and positions by tables; the logits are by the same table as the words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.randn(1, 16, WIDTH))
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions
        return self.head(x + self.mlp(x)).transpose(1, 2)


class Bags(nn.Module):
    """Categories in bags, and numbers scaled by batch norm; crossed, as in recommenders."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(VOCABULARY, 32) for _ in range(2))
        self.numbers = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))
        self.top = nn.Sequential(nn.Linear(32 * 3 + 1, 96), nn.ReLU(), nn.Linear(96, CLASSES))

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        one, two = (table(categories[:, i]) for i, table in enumerate(self.tables))
        return self.top(torch.cat([one, two, self.numbers(numbers), (one * two).sum(1, keepdim=True)], 1))


class TwoInputs(nn.Module):
    """A picture and numbers, with features added, and multiplied onto the channels (FiLM)."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.again, self.last = conv(3, WIDTH), conv(WIDTH, WIDTH), conv(WIDTH, WIDTH)
        self.numbers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2 * WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, image: Tensor, numbers: Tensor) -> Tensor:
        scale, shift = self.numbers(numbers)[:, :, None, None].chunk(2, 1)
        return self.head(self.last(self.again(self.image(image)) * (1 + scale) + shift).mean((2, 3)))


class DictOutputs(nn.Module):
    """A shared trunk with three heads, and a mapping with a list as output."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.deep = conv(3, WIDTH), conv(WIDTH, 64, stride=2)
        self.boxes, self.scores = nn.Conv2d(64, 4, 1), nn.Conv2d(64, CLASSES, 1)
        self.kind = nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor) -> dict[str, object]:
        x = self.trunk(x)
        deep = self.deep(x)
        return {"maps": [self.boxes(deep), self.scores(deep)], "kind": self.kind(x.mean((2, 3)))}


class Siamese(nn.Module):
    """A trunk for two pictures, and the agreement of their features."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(conv(3, 32), conv(32, WIDTH, stride=2))
        self.head = nn.Sequential(nn.Linear(2 * WIDTH, 64), nn.ReLU(), nn.Linear(64, CLASSES))

    def forward(self, pair: Tensor) -> Tensor:
        one, two = (self.trunk(picture).mean((2, 3)) for picture in pair.unbind(1))
        return self.head(torch.cat([(one - two).abs(), one * two], 1))


class Patches(nn.Module):
    """Patches by unfold, mixed along positions and along channels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3 * 16, WIDTH)
        self.along = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
        self.across = nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.Linear(128, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(F.unfold(x, 4, stride=4).transpose(1, 2))
        x = x + self.along(x.transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.across(x)).mean(1))


class Causal(nn.Module):
    """Dilated convolutions over time with gates and skips, as in WaveNet."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(12, 32, 1)
        self.layers = nn.ModuleList(nn.Conv1d(32, 64, 2, dilation=2**i) for i in range(3))
        self.residual = nn.ModuleList(nn.Conv1d(32, 32, 1) for _ in range(3))
        self.skip = nn.ModuleList(nn.Conv1d(32, 48, 1) for _ in range(3))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(48, 64, 1), nn.ReLU(), nn.Conv1d(64, CLASSES, 1))

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.enter(x.transpose(1, 2)), torch.zeros(())
        for i, layer in enumerate(self.layers):
            signal, gate = layer(F.pad(x, (2**i, 0))).chunk(2, 1)
            inner = signal.tanh() * gate.sigmoid()
            x, total = x + self.residual[i](inner), total + self.skip[i](inner)
        return self.head(total)[:, :, -1]


class Folded(nn.Module):
    """Weight norm by PyTorch's parametrizations."""

    def __init__(self) -> None:
        super().__init__()
        norm = torch.nn.utils.parametrizations.weight_norm
        self.layers = nn.Sequential(norm(nn.Linear(12, 64)), nn.ReLU(), norm(nn.Linear(64, 64)), nn.ReLU())
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)).mean(1)
