"""A user's own family: once registered, its models are pruned in depth like any other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from prunerecover import Budget, apply_plan, find_units, plan_depth
from prunerecover.families import describe as registry
from prunerecover.families.describe import describe, register_family
from prunerecover.families.layout import Block, Branch, Layout
from prunerecover.model.replacements import Replacement

DIM, DEPTH = 8, 4


class MixerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.mixer = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixer(self.norm(x))


class MixerNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.Sequential(*(MixerBlock() for _ in range(DEPTH)))
        self.head = nn.Linear(DIM, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(x))


def read(model: nn.Module) -> Layout | None:
    if not isinstance(model, MixerNetwork):
        return None

    def branch(path: str, block: nn.Module) -> Branch | None:
        if isinstance(block.mixer, Replacement):
            return None
        return Branch("mlp", f"{path}.mixer", (f"{path}.norm",), f"{path}.norm", returns=1, dim=DIM)

    stages = [(f"stages.{i}", block) for i, block in enumerate(model.stages)]
    return Layout("MixerNetwork", "stages", tuple(Block(p, None, branch(p, b), None, "not listed") for p, b in stages))


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> MixerNetwork:
    monkeypatch.setattr(registry, "FAMILIES", dict(registry.FAMILIES))
    register_family(read, "MixerNetwork")
    torch.manual_seed(0)
    return MixerNetwork().eval()


def test_an_architecture_nobody_registered_is_named_in_the_error_and_registered_by_name() -> None:
    with pytest.raises(ValueError, match=r"supported family \(timm VisionTransformer, .*got MixerNetwork.*register_f"):
        describe(MixerNetwork())
    with pytest.raises(ValueError, match="Expected the name of the family"):
        register_family(read)


def test_its_units_are_found_and_messages_list_it(network: MixerNetwork) -> None:
    assert [unit.name for unit in find_units(network, kinds=("mlp",))] == [f"stages.{i}.mixer" for i in range(DEPTH)]
    with pytest.raises(ValueError, match=r"supported family \(MixerNetwork, timm VisionTransformer, "):
        describe(nn.Linear(2, 2))


@pytest.mark.parametrize("kind", ["block", "mlp"])
def test_without_its_units_it_computes_what_is_left(network: MixerNetwork, kind: str) -> None:
    batches = [torch.randn(4, DIM) for _ in range(4)]
    plan = plan_depth(network, Budget(remove={kind: 2}), batches=batches, replace="zero")  # type: ignore[dict-item]
    x, left = torch.randn(5, DIM), list(network.stages)
    gone = {int(edit.unit.split(".")[1]) for edit in plan.edits}
    expected = network.head(nn.Sequential(*(block for i, block in enumerate(left) if i not in gone))(x))
    apply_plan(network, plan)
    torch.testing.assert_close(network(x), expected)
    assert len(find_units(network, kinds=("mlp",))) == DEPTH - 2


def test_with_channels_first_nothing_is_fitted(network: MixerNetwork) -> None:
    for block in network.stages:  # as in CNNs
        block.norm, block.mixer = nn.BatchNorm2d(DIM), nn.Conv2d(DIM, DIM, 3, padding=1)
    network.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(DIM, 3))
    batches = [torch.randn(4, DIM, 6, 6) for _ in range(4)]
    plan = plan_depth(network.eval(), remove={"mlp": 1}, batches=batches)
    assert not plan.tensors
    apply_plan(network, plan)
    assert network(batches[0]).shape == (4, 3)
