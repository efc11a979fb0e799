"""Which norms and activations go with a layer."""

from __future__ import annotations

import pytest
import torch
from cases.depth.hand_made import PostNorm
from torch import Tensor, nn

from prunerecover.graph.coupling import coupled_nodes
from prunerecover.graph.trace import trace_graph
from prunerecover.model.batches import as_inputs


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.norm = nn.GroupNorm(1, 4)
        self.alone = nn.Conv2d(4, 4, 1)
        self.behind, self.act = nn.BatchNorm2d(4), nn.SiLU()
        self.shared = nn.GroupNorm(2, 4)
        self.one, self.two = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.last_act = nn.ReLU()
        self.first_bn, self.then = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.behind(self.alone(self.norm(self.stem(x)))))
        normed = self.shared(x)
        x = self.last_act(self.one(normed) + self.two(normed))
        return self.head(self.then(self.first_bn(x)))


def coupled(model: nn.Module, batch: Tensor, path: str, *gone: str) -> list[str]:
    graph = trace_graph(model.eval(), as_inputs(batch))
    (layer,) = graph.by_module[path]
    before = {node.index for name in gone for node in graph.by_module[name]}
    return [graph.name(node) for node in coupled_nodes(graph, layer, before)]


IMAGE = torch.rand(2, 3, 4, 4)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("alone", ["behind", "act"], id="norm of its output and activation"),
        pytest.param("stem", ["norm"], id="norm behind that another layer reads"),
        pytest.param("one", [], id="norm that two read stays, and the activation behind a sum"),
        pytest.param("then", ["first_bn"], id="norm in front that it reads alone"),
    ],
)
def test_norms_and_activations_that_serve_a_layer_alone_go_with_it(path: str, expected: list[str]) -> None:
    assert coupled(Norms(), IMAGE, path) == expected


def test_a_norm_that_a_sum_reads_through_an_identity_stays_with_the_stream() -> None:
    assert coupled(Norms(), IMAGE, "two", "one") == []


def test_a_norm_that_the_layer_before_makes_does_not_go_with_the_layer_behind() -> None:
    assert "norm" not in coupled(Norms(), IMAGE, "alone")


@pytest.mark.parametrize("path", ["fc1", "fc2", "fc3", "fc4"])
def test_a_stream_that_is_normed_keeps_its_norm(path: str) -> None:
    assert not {"norm1", "norm2"} & set(coupled(PostNorm(), torch.rand(2, 3, 5), path))
