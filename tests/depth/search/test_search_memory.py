"""Memory of a search: bounded for any number of samples, with the same answers as without a bound."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases.depth.memory import peaks_of
from cases.engine import batches_of, build
from torch import Tensor, nn

from prunerecover import plan_depth
from prunerecover.depth.layers import prefix
from prunerecover.divergence import kept_outputs
from prunerecover.graph.trace import trace_graph
from prunerecover.model.batches import as_inputs


def layers() -> tuple[nn.Module, list[Any]]:
    """A network of no family."""
    torch.manual_seed(0)
    hidden = (part for _ in range(6) for part in (nn.Linear(16, 16), nn.Tanh()))
    batches = torch.randn(6, 8, 16, generator=torch.Generator().manual_seed(1))
    return nn.Sequential(*hidden, nn.Linear(16, 5)).eval(), list(batches)


def blocks() -> tuple[nn.Module, list[Any]]:
    return build("llama"), batches_of("llama", count=4)


@pytest.mark.parametrize(
    ("make", "remove", "search"),
    [
        (layers, {"layer": 2}, None),
        pytest.param(blocks, {"attention": 1}, "exact", marks=pytest.mark.slow),
        pytest.param(blocks, {"block": 2}, "greedy", marks=pytest.mark.slow),
    ],
)
def test_nothing_kept_finds_the_same(make: Any, remove: Any, search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    network, batches = make()
    wanted = plan_depth(network, remove=remove, batches=batches, search=search)
    for room in (0, 3000, 12000):  # none, and enough for a few batches
        monkeypatch.setattr(prefix, "MOST_KEPT", room)
        monkeypatch.setattr(kept_outputs, "MOST_KEPT", room)
        found = plan_depth(network, remove=remove, batches=batches, search=search)
        assert found.removed == wanted.removed
        assert [edit.op for edit in found.edits] == [edit.op for edit in wanted.edits]
        assert found.evidence["divergence"] == pytest.approx(wanted.evidence["divergence"], rel=1e-4)


class Part(nn.Module):
    """Counts its runs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.runs = nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return x + self.inner(x).tanh()


@pytest.mark.parametrize("hooked", [False, True])
def test_whole_parts_before_a_change_are_not_run_again_unless_hooks_inside_may_hand_tensors_on(hooked: bool) -> None:
    torch.manual_seed(0)
    network, x = nn.Sequential(Part(), Part(), Part()).eval(), torch.randn(2, 4)
    seen: list[Tensor] = []
    if hooked:
        network[0].inner.register_forward_hook(lambda _, __, output: seen.append(output))
    graph = trace_graph(network, as_inputs(x))
    runner = prefix.PrefixRunner(graph, 1, lambda model, _: model(x))
    (wanted,) = runner.keep(network)
    before = [part.runs for part in network]
    (found,) = runner.run(network, graph.first_in["2.inner"], [0])
    assert torch.equal(found, wanted)
    assert [part.runs - old for part, old in zip(network, before, strict=True)] == [int(hooked), 0, 1]


LAYERS = """
    prefix.MOST_KEPT = kept_outputs.MOST_KEPT = 1 << 24
    layers = [part for _ in range(3) for part in (nn.Linear(64, 64), nn.Tanh())]
    network = nn.Sequential(nn.Embedding(4000, 64), *layers, nn.Linear(64, 4000)).eval()
    for count in (4, 28):
        batches = list(torch.randint(4000, (count, 2, 128)))
        plan_depth(network, remove={"layer": 1}, batches=batches, search="greedy")
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
BLOCKS = """
    prefix.MOST_KEPT = 1 << 22
    shape = dict(hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    network = LlamaForCausalLM(LlamaConfig(vocab_size=2000, num_key_value_heads=4, **shape)).eval()
    for count in (4, 24):
        batches = [{"input_ids": ids} for ids in torch.randint(2000, (count, 4, 128))]
        for kind in ("block", "attention"):
            plan_depth(network, remove={kind: 1}, batches=batches, search="greedy")
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
IMPORTS = """
    import resource
    import torch
    from torch import nn
    from transformers import LlamaConfig, LlamaForCausalLM
    from prunerecover import plan_depth
    from prunerecover.depth.layers import prefix
    from prunerecover.divergence import kept_outputs

    torch.manual_seed(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("script", "most"), [(LAYERS, 60), (BLOCKS, 40)], ids=["layers", "blocks"])
def test_memory_does_not_grow_with_the_number_of_tokens(script: str, most: int) -> None:
    """Dense outputs of 24 batches are about 100 MB, and each list of hidden states of all their tokens 6 MB."""
    few, many = peaks_of(IMPORTS + script)
    assert many - few < most << 10
