"""Branches and blocks that are found in networks of no known family, by what is added to what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from cases.depth.architectures import ARCHITECTURES
from cases.depth.hand_made import Gated, InPlaceSums
from cases.depth.removal import removals_in, removals_of
from cases.sampling import one_in
from torch import Tensor, nn

# Blocks, attentions and MLPs of each.
FOUND = {
    "gemma2": (2, 2, 2),
    "phi": (2, 2, 2),
    "neox": (2, 2, 2),
    "gptj": (2, 2, 2),
    "falcon": (2, 2, 2),
    "mixtral": (2, 2, 2),
    "whisper": (4, 6, 4),
    "dinov2": (2, 2, 2),
    "segformer": (2, 5, 5),
    "xcit": (4, 4, 6),
    "swin": (4, 4, 4),
    "mixer": (8, 0, 16),
    "poolformer": (12, 0, 12),
    "convnext": (12, 0, 0),
    "convnext_hf": (8, 0, 0),
    "resnet18": (5, 0, 0),
    "resnet50": (12, 0, 0),
    "two inputs": (0, 0, 0),
}


@pytest.mark.parametrize("name", one_in(2, FOUND))
def test_branches_and_blocks_are_found_by_structure(name: str) -> None:
    removals = removals_in(name, ("block", "attention", "mlp"))
    kinds = Counter(unit.kind for unit in removals.units)
    assert (kinds["block"], kinds["attention"], kinds["mlp"]) == FOUND[name]


@pytest.mark.parametrize("name", one_in(3, ["phi", "bloom", "mixtral", "swin", "poolformer", "whisper", "t5"]))
def test_no_two_units_share_a_name(name: str) -> None:
    names = Counter(unit.name for unit in removals_of(*ARCHITECTURES[name]()).units)
    assert max(names.values()) == 1


def refused(model: nn.Module, batch: Tensor, kinds: Sequence[str] = ("block", "attention", "mlp")) -> dict[str, str]:
    return removals_of(model, batch, kinds).refused


def test_branch_whose_halves_are_cut_in_code_is_refused() -> None:
    assert "the network does not run without it" in refused(Gated().eval(), torch.rand(2, 3, 4))["both+down"]


def test_block_that_hands_positions_on_is_refused() -> None:
    found = removals_of(*ARCHITECTURES["t5"](), ("block", "mlp"))
    assert {unit.kind for unit in found.units} == {"mlp"}
    assert "returns several tensors, which others would miss" in found.refused["encoder.block.1"]


def test_block_whose_parts_code_outside_reads_is_refused() -> None:
    reason = refused(*ARCHITECTURES["encoder"]())["1.layers.0"]
    assert reason.startswith("the code of '1' (TransformerEncoder) reads parts of '1.layers.0'; ")


def test_block_that_changes_shape_is_refused() -> None:
    reasons = refused(*ARCHITECTURES["resnet18"]())
    assert reasons["layer2.0"].startswith("its output has another shape than its input; ")


class SeveralOut(nn.Module):
    """Blocks that hand on a mapping, or whose inner values others read."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(Mapped() for _ in range(2))
        self.then = nn.ModuleList(Leaky() for _ in range(2))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.first:
            x = block(x)["x"]
        for block in self.then:
            x, inner = block(x)
            x = x + inner
        return self.head(x)


class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": self.b(torch.relu(self.a(x)))}


class Leaky(Mapped):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        inner = torch.relu(self.a(x))
        return self.b(inner), inner


def test_block_that_returns_no_tensor_first_is_refused() -> None:
    assert refused(SeveralOut(), torch.rand(2, 4))["first.0"].startswith("'first.0' returns no tensor first; ")


def test_block_of_which_inner_values_are_read_is_refused() -> None:
    reason = refused(SeveralOut(), torch.rand(2, 4))["then.0"]
    assert reason.startswith("something else reads what it computes inside; ")


def test_branches_added_in_place_leave_zeros_of_their_shape() -> None:
    model = InPlaceSums().eval()
    removals = removals_of(model, torch.rand(2, 3, 8, 8), ("mlp",))
    bypass = removals.edits([removals.units[0]])[0]
    assert bypass.leaves == "zeros"


class Parallel(nn.Module):
    """Cohere's order: (stream + first) + second, both of one norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.a = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        self.b = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        normed = self.norm(x)
        return self.head(x + self.a(normed) + self.b(normed))


def test_parallel_branches_are_found_one_by_one() -> None:
    removals = removals_of(Parallel(), torch.rand(2, 4), ("mlp",))
    assert [unit.targets for unit in removals.units] == [("a",), ("b",)]


def test_branch_without_a_module_of_its_own_is_named_by_its_first_and_last_layer() -> None:
    units = removals_of(*ARCHITECTURES["whisper"](), ("mlp",)).units
    assert units[0].name == "model.encoder.layers.0.fc1+fc2"


def test_layer_by_whose_name_an_mlp_goes_is_refused_beside_it() -> None:
    from cases.engine import batch_of, build

    removals = removals_of(build("opt"), batch_of("opt"), ("mlp", "layer"))
    reason = "the mlp that begins with it goes by its name; look for layers alone"
    assert removals.refused["model.decoder.layers.0.fc1"] == reason
