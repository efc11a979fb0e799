"""Branches found in networks of no known family, and training of the network without some units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

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
from prunerecover.model.evaluation import evaluating
from prunerecover.surgery.apply_edits import apply_edits

# Blocks, attentions and MLPs of each.
FOUND = {
    "mixtral": (2, 2, 2),
    "whisper": (4, 6, 4),
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


@pytest.mark.parametrize("name", ["mixtral", "whisper"])
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
    """Cohere's order: (stream + first) + second, both behind the same norm."""

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
    assert not {unit: dead for unit, dead in found.items() if dead}


def test_a_branch_goes_whole_though_its_state_is_kept() -> None:
    model, batch = hybrid("Lfm2ForCausalLM")
    units = {unit.name: unit for unit in removals_of(model, batch).units}
    targets = {"model.layers.0.operator_norm", "model.layers.0.conv"}
    assert set(units["model.layers.0.conv"].targets) == targets


@pytest.mark.parametrize("name", ["past", "memory"])
def test_a_state_in_the_output_goes_with_its_branch_or_the_branch_stays(name: str) -> None:
    model = Recurrent(name)
    units = {unit.name for unit in removals_of(model, X).units}
    assert ("mixers.0" in units) == (name == "past")  # what is kept for the next call is no output
    assert "mlps.0" in units
    assert not {unit: dead for unit, dead in dead_without_each(model, X, logits).items() if dead}


def test_a_branch_that_stays_says_what_would_not_train() -> None:
    refused = removals_of(Recurrent("memory"), X).refused
    assert refused["mixers.0.gate+out"] == (
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
    assert plan.result.params == sum(parameter.numel() for parameter in model.parameters())


def test_the_norm_of_two_branches_stays_with_one() -> None:
    assert not {unit: dead for unit, dead in dead_without_each(Lookahead(), X, logits).items() if dead}


@pytest.mark.parametrize("rank", [8, 1])  # of another shape than what enters: nothing reads what an identity returns
def test_what_a_block_alone_is_handed_goes_with_it(rank: int) -> None:
    removals = removals_of(Lending(rank), X, ("block",))
    (unit, _) = removals.units
    left = pruned(removals, [unit])
    assert {name for name, _ in left.named_parameters() if "0" in name} == set()
    assert unit.params == size(removals.model) - size(left)
    with torch.no_grad():
        model = removals.model
        assert torch.equal(left(X), model.head(model.blocks[1](model.stem(X), model.adapters[1])))  # type: ignore[operator,index]


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


def test_decoders_keep_nothing_while_they_are_observed() -> None:
    model, batch = hybrid("Lfm2ForCausalLM")
    with evaluating(model):
        assert model(**batch).past_key_values is None
    assert model(**batch).past_key_values is not None


def test_scale_of_a_block_trains_on_behind_a_removed_branch() -> None:
    model, batch = ARCHITECTURES["xcit"]()
    plan = plan_depth(model, batches=[batch], remove={"attention": 1, "mlp": 2}, importance="magnitude")
    network = deep_copy(model).train()
    apply_plan(network, plan)
    network(batch).square().sum().backward()
    assert [name for name, parameter in network.named_parameters() if parameter.grad is None] == []
