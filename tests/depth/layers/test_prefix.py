"""Kept prefixes of a network: bounded for any number of samples, with the same answers as without."""

from __future__ import annotations

import pytest
import torch
from cases.depth.memory import peaks_of
from torch import nn

from prunerecover import plan_depth
from prunerecover.depth.layers import prefix
from prunerecover.divergence import kept_outputs
from prunerecover.graph.trace import trace_graph
from prunerecover.model.batches import as_inputs


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(16, 16), nn.Tanh())), nn.Linear(16, 5)).eval()


def batches(count: int = 6) -> list[torch.Tensor]:
    return list(torch.randn(count, 8, 16, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("room", [0, 3000])  # none, and enough for a few batches
def test_nothing_kept_finds_the_same(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = plan_depth(network(), remove={"layer": 2}, batches=batches())
    monkeypatch.setattr(prefix, "MOST_KEPT", room)
    monkeypatch.setattr(kept_outputs, "MOST_KEPT", room)
    found = plan_depth(network(), remove={"layer": 2}, batches=batches())
    assert found.edits == wanted.edits
    assert found.evidence["divergence"] == pytest.approx(wanted.evidence["divergence"])


class Part(nn.Module):
    """Counts its runs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.runs = nn.Linear(4, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return x + self.inner(x).tanh()


@pytest.mark.parametrize("hooked", [False, True])
def test_whole_parts_before_a_change_are_not_run_again_unless_hooks_inside_may_hand_tensors_on(hooked: bool) -> None:
    torch.manual_seed(0)
    network, x = nn.Sequential(Part(), Part(), Part()).eval(), torch.randn(2, 4)
    seen: list[torch.Tensor] = []
    if hooked:
        network[0].inner.register_forward_hook(lambda _, __, output: seen.append(output))
    graph = trace_graph(network, as_inputs(x))
    runner = prefix.PrefixRunner(graph, 1, lambda model, _: model(x))
    (wanted,) = runner.keep(network)
    before = [part.runs for part in network]
    (found,) = runner.run(network, graph.first_in["2.inner"], [0])
    assert torch.equal(found, wanted)
    assert [part.runs - old for part, old in zip(network, before, strict=True)] == [int(hooked), 0, 1]


PEAK = """
    import resource
    import torch
    from torch import nn
    from prunerecover import plan_depth
    from prunerecover.depth.layers import prefix
    from prunerecover.divergence import kept_outputs

    prefix.MOST_KEPT = kept_outputs.MOST_KEPT = 1 << 24
    torch.manual_seed(0)
    layers = [part for _ in range(3) for part in (nn.Linear(64, 64), nn.Tanh())]
    network = nn.Sequential(nn.Embedding(4000, 64), *layers, nn.Linear(64, 4000)).eval()
    for count in (4, 28):
        batches = list(torch.randint(4000, (count, 2, 128)))
        plan_depth(network, remove={"layer": 1}, batches=batches, search="greedy")
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_tokens() -> None:
    """Dense outputs of 28 batches are 115 MB; the peak before is that of a search over 4."""
    few, many = peaks_of(PEAK)
    assert many - few < 60 << 10
