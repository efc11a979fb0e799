"""Numbers of layers, attentions and blocks in known networks, and the norms and activations coupled to them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from cases.depth.hand_made import PostNorm
from cases.depth.removal import removals_of
from torch import Tensor, nn

from prunerecover import find_units
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
    ("path", "gone", "expected"),
    [
        pytest.param("alone", (), ["behind", "act"], id="norm of its output and activation, and not the norm before"),
        pytest.param("stem", (), ["norm"], id="norm behind that another layer reads"),
        pytest.param("one", (), [], id="norm that two read stays, and the activation behind a sum"),
        pytest.param("then", (), ["first_bn"], id="norm in front that it reads alone"),
        pytest.param("two", ("one",), [], id="norm that a sum reads through an identity stays with the stream"),
    ],
)
def test_norms_and_activations_that_serve_a_layer_alone_go_with_it(
    path: str, gone: tuple[str, ...], expected: list[str]
) -> None:
    assert coupled(Norms(), IMAGE, path, *gone) == expected


@pytest.mark.parametrize("path", ["fc1", "fc2", "fc3", "fc4"])
def test_a_stream_that_is_normed_keeps_its_norm(path: str) -> None:
    assert not {"norm1", "norm2"} & set(coupled(PostNorm(), torch.rand(2, 3, 5), path))


def test_llama_2_needs_no_example_and_is_listed_from_one_pass_without_weights() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 3, "num_attention_heads": 32}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=32000))
    passes: list[nn.Module] = []
    model.register_forward_hook(lambda called, *_: passes.append(called))
    units = find_units(model, kinds=("attention", "layer"))
    assert Counter(unit.kind for unit in units) == {"layer": 9, "attention": 3}
    assert len(passes) == 1
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(("size", "with_strided", "without"), [("m", 79, 72), ("l", 101, 94), ("x", 123, 116)])
def test_yolov5_has_the_published_numbers_of_layers(size: str, with_strided: int, without: int) -> None:
    ultralytics = pytest.importorskip("ultralytics")
    model, batch = ultralytics.YOLO(f"yolov5{size}.yaml").model, torch.rand(1, 3, 64, 64)
    found = [removals_of(model, batch, ("layer",), include_strided=strided).units for strided in (True, False)]
    assert list(map(len, found)) == [with_strided, without]
