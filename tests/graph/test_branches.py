"""Branches found in networks of no known family, and training of the network without some units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases.depth.architectures import ARCHITECTURES
from cases.depth.hand_made import Gated, InPlaceSums
from cases.depth.hybrids import SETTINGS, Lending, Lookahead, Recurrent, grown, hybrid
from cases.depth.removal import pruned, removals_in, removals_of, size
from torch import Tensor, nn

from prunerecover import apply_plan, plan_depth
from prunerecover.depth.layers.pruned_graph import NotRemovable
from prunerecover.graph.trace import trace_graph
from prunerecover.model.copies import deep_copy
from prunerecover.surgery.apply_edits import apply_edits

# Blocks, attentions and MLPs of each.
FOUND = {
    "mixtral": (2, 2, 2),
    "whisper": (4, 6, 4),
    "t5": (0, 0, 4),  # its blocks and attentions hand positions on
    "xcit": (4, 2, 4),  # of each class-attention block, the branches scale a concatenation
    "swin": (4, 4, 4),
    "poolformer": (12, 0, 12),
    "convnext": (12, 0, 0),
    "resnet18": (5, 0, 0),
    "two inputs": (0, 0, 0),
}


@pytest.mark.parametrize("name", FOUND)
def test_branches_and_blocks_are_found_by_structure(name: str) -> None:
    removals = removals_in(name, ("block", "attention", "mlp"))
    kinds = Counter(unit.kind for unit in removals.units)
    assert (kinds["block"], kinds["attention"], kinds["mlp"]) == FOUND[name]
    assert len({unit.name for unit in removals.units}) == len(removals.units)


class SeveralOut(nn.Module):
    """Blocks with a mapping as output, or with inner values read outside."""

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


def several_out() -> tuple[nn.Module, Tensor]:
    return SeveralOut(), torch.rand(2, 4)


@pytest.mark.parametrize(
    ("network", "unit", "reason"),
    [
        (lambda: (Gated().eval(), torch.rand(2, 3, 4)), "both+down", "the network does not run without it"),
        (ARCHITECTURES["t5"], "encoder.block.1", "'encoder.block.1' returns several tensors, which others would miss"),
        (ARCHITECTURES["encoder"], "1.layers.0", "the code of '1' (TransformerEncoder) reads parts of '1.layers.0'; "),
        (ARCHITECTURES["resnet18"], "layer2.0", "its output has another shape than its input; "),
        (several_out, "first.0", "'first.0' returns no tensor first; "),
        (several_out, "then.0", "something else reads what it computes inside; "),
    ],
)
def test_what_cannot_go_says_why(network: Callable[[], tuple[nn.Module, Any]], unit: str, reason: str) -> None:
    assert removals_of(*network(), ("block", "attention", "mlp")).refused[unit].startswith(reason)


def test_branches_added_in_place_leave_zeros_of_their_shape() -> None:
    removals = removals_of(InPlaceSums().eval(), torch.rand(2, 3, 8, 8), ("mlp",))
    assert removals.edits(removals.units[:1])[0].leaves == "zeros"


def test_layer_by_whose_name_an_mlp_goes_is_refused_beside_it() -> None:
    from cases.engine import batch_of, build

    removals = removals_of(build("opt"), batch_of("opt"), ("mlp", "layer"))
    reason = "the mlp that begins with it goes by its name; look for layers alone"
    assert removals.refused["model.decoder.layers.0.fc1"] == reason


KINDS = ("block", "attention", "mlp", "layer")
X = torch.rand(2, 5, 4, generator=torch.Generator().manual_seed(0))


def logits(model: nn.Module) -> Tensor:
    found = model(X)
    return found if isinstance(found, Tensor) else found["logits"]


def dead_without_each(model: nn.Module, batch: object, output: Callable[[nn.Module], Tensor]) -> dict[str, set[str]]:
    """Return the remaining parameters without gradients after each unit's removal, by unit."""
    removals, trained, found = removals_of(model, batch, KINDS), grown(deep_copy(model), output), dict[str, set[str]]()
    for unit in removals.units:
        left = deep_copy(model)
        try:
            apply_edits(left, removals.edits([unit]))
        except NotRemovable:  # widths of a layer do not meet
            continue
        found[f"{unit.kind} {unit.name}"] = trained & {name for name, _ in left.named_parameters()} - grown(
            left, output
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_hybrids_of_transformers_keep_no_parameter_that_does_not_train(name: str) -> None:
    model, batch = hybrid(name)
    found = dead_without_each(model, batch, lambda left: left(**batch).logits)
    assert found
    assert not any(found.values())


def test_a_branch_goes_whole_though_its_state_is_kept() -> None:
    model, batch = hybrid("Lfm2ForCausalLM")
    units = {unit.name: unit for unit in removals_of(model, batch).units}
    assert set(units["model.layers.0.conv"].targets) == {"model.layers.0.operator_norm", "model.layers.0.conv"}


@pytest.mark.parametrize("name", ["past", "memory"])
def test_a_state_in_the_output_goes_with_its_branch_or_the_branch_stays(name: str) -> None:
    model = Recurrent(name)
    removals = removals_of(model, X)
    units = {unit.name for unit in removals.units}
    assert ("mixers.0" in units) == (name == "past")  # what is kept for the next call is no output
    assert "mlps.0" in units
    assert not any(dead_without_each(model, X, logits).values())
    if name == "memory":
        assert removals.refused["mixers.0.gate+out"] == (
            "'norms.0.weight' and 3 more would get no gradient any more, for only what goes reads it; narrow it."
        )


def test_the_norm_of_two_branches_goes_with_both() -> None:
    batches = [X.repeat(4, 1, 1)]
    plan = plan_depth(Lookahead(), remove={"mlp": 2}, batches=batches, search="one_shot", replace="zero")
    model = Lookahead()
    apply_plan(model, plan)
    with torch.no_grad():
        assert torch.equal(model(X), model.head(model.stem(X)))
    assert [name for name, _ in model.named_parameters()] == ["stem.weight", "stem.bias", "head.weight", "head.bias"]
    assert plan.result is not None
    assert plan.result.params == size(model)


def test_the_norm_of_two_branches_stays_with_one() -> None:
    assert not any(dead_without_each(Lookahead(), X, logits).values())


@pytest.mark.parametrize("rank", [8, 1])  # of another shape than what enters: nothing reads what an identity returns
def test_what_a_block_alone_is_handed_goes_with_it(rank: int) -> None:
    removals = removals_of(Lending(rank), X, ("block",))
    (unit, _) = removals.units
    left = pruned(removals, [unit])
    assert {name for name, _ in left.named_parameters() if "0" in name} == set()
    assert unit.params == size(removals.model) - size(left)
    with torch.no_grad():
        model: Any = removals.model
        assert torch.equal(left(X), model.head(model.blocks[1](model.stem(X), model.adapters[1])))


def test_a_block_stays_if_it_alone_is_handed_what_no_identity_can_replace() -> None:
    removals = removals_of(Lending(rank=None), X, ("block",))
    assert not removals.units
    assert removals.refused["blocks.0"] == (
        "'adapters.0' would get no gradient any more, for only what goes reads it; narrow it."
    )


def test_a_view_of_what_is_overwritten_depends_on_it() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            room = torch.empty_like(x)
            first = room[:, 0]
            room.copy_(self.inner(x))
            return self.outer(first)  # type: ignore[no-any-return]

    graph = trace_graph(Written(), X)
    assert graph.by_module["inner"][0].index in graph.reached_by_output


def test_scale_of_a_block_trains_on_behind_a_removed_branch() -> None:
    model, batch = ARCHITECTURES["xcit"]()
    plan = plan_depth(model, batches=[batch], remove={"attention": 1, "mlp": 2}, importance="magnitude")
    network = deep_copy(model).train()
    apply_plan(network, plan)
    network(batch).square().sum().backward()
    assert [name for name, parameter in network.named_parameters() if parameter.grad is None] == []
