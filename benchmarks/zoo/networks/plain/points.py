"""Networks of graphs, points, tables and places in plain forms."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.zoo.networks.network import CLASSES
from benchmarks.zoo.networks.plain.sequences import FEATURES, VOCABULARY


class GraphLayer(nn.Module):
    """Features of neighbours, averaged or attended to."""

    def __init__(self, made: int, width: int, *, attention: bool) -> None:
        super().__init__()
        self.values = nn.Linear(made, width)
        self.score = nn.ModuleList([nn.Linear(width, 1), nn.Linear(width, 1)]) if attention else None

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        x = self.values(x)
        weights = adjacency / adjacency.sum(-1, keepdim=True)
        if self.score is not None:
            scores = F.leaky_relu(self.score[0](x) + self.score[1](x).mT, 0.2)
            weights = scores.masked_fill(adjacency == 0, float("-inf")).softmax(-1)
        return weights @ x


class GraphNetwork(nn.Module):
    """Graph network over dense adjacencies with labels of nodes."""

    def __init__(self, *, attention: bool) -> None:
        super().__init__()
        sizes = (FEATURES, 48, 48, 48)
        self.layers = nn.ModuleList(
            GraphLayer(a, b, attention=attention) for a, b in zip(sizes[:-1], sizes[1:], strict=True)
        )
        self.head = nn.Linear(48, CLASSES)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        for layer in self.layers:
            nodes = F.relu(layer(nodes, adjacency))
        return self.head(nodes)


class PointNet(nn.Module):
    """Points, turned by a matrix computed from them, and their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 64, 1))
        self.matrix = nn.Linear(64, 9)
        self.local = nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 96, 1))
        self.head = nn.Sequential(nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, CLASSES))

    def forward(self, points: Tensor) -> Tensor:
        turn = self.matrix(self.turn(points).max(2)[0]).view(-1, 3, 3) + torch.eye(3)
        return self.head(self.local(turn @ points).max(2)[0])


class TwoTowers(nn.Module):
    """Tables of users and items, crossed with numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.EmbeddingBag(VOCABULARY, 16), nn.Embedding(VOCABULARY, 16)
        self.numbers = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 16))
        self.top = nn.Sequential(nn.Linear(19, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, user: Tensor, item: Tensor, numbers: Tensor) -> Tensor:
        parts = torch.stack([self.users(user), self.items(item), self.numbers(numbers)], 1)
        crossed = (parts @ parts.mT)[:, [0, 0, 1], [1, 2, 2]]
        return self.top(torch.cat([crossed, parts[:, 2]], 1))


class RadianceField(nn.Module):
    """Densities and colours of places, whose sines enter twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(88, 64), nn.ReLU(), nn.Linear(64, 65))
        self.colour = nn.Sequential(nn.Linear(67, 32), nn.ReLU(), nn.Linear(32, 3), nn.Sigmoid())

    def forward(self, places: Tensor, directions: Tensor) -> Tensor:
        angles = places.unsqueeze(-1) * 2.0 ** torch.arange(4)
        x = torch.cat([angles.sin(), angles.cos()], -1).flatten(-2)
        density, features = self.second(torch.cat([self.first(x), x], -1)).split([1, 64], -1)
        return torch.cat([self.colour(torch.cat([features, directions], -1)), F.softplus(density)], -1)
