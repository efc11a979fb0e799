"""Replacements of units known from the graph alone: fitted in order, narrowed with their stream, and tuned."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.planning.networks import Plain
from cases.planning.plans import chosen
from torch import Tensor, nn

from prunerecover import apply_plan
from prunerecover.library.edits import Chosen
from prunerecover.library.library import Library
from prunerecover.model.paths import get_module
from prunerecover.planning.arguments import PruningConfig
from prunerecover.planning.planner import Planner
from prunerecover.session.session import Session

GONE = {"1.0": "affine 0.01", "1.1": "affine 0.01"}


def network(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Plain(8) for _ in range(3)))
    stem = [nn.Conv2d(3, 8, 3), *([nn.BatchNorm2d(8)] if norm else [])]
    return nn.Sequential(nn.Sequential(*stem), blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).eval()


def planner(model: nn.Module, *kinds: str) -> Planner:
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(16, 3, 9, 9, generator=generator), torch.arange(16) % 5) for _ in range(4)]
    return Planner(Session.with_dense_reference(model, batches), "macs", PruningConfig(kinds=kinds or None))


def off_the_dense_block(library: Library, choice: Chosen, block: str) -> float:
    """Return the squared error of a replaced block's output on the samples for fits."""
    session = library.session
    pruned, wanted, found = session.output.pruned(*library.maker.edits(choice)), list[Tensor](), list[Tensor]()
    for model, into in ((session.model, wanted), (pruned, found)):
        handle = get_module(model, block).register_forward_hook(lambda _, __, y, into=into: into.append(y))
        for batch in session.samples.fit:
            model(*batch.args)
        handle.remove()
    return float((torch.cat(wanted) - torch.cat(found)).square().mean())


def test_the_second_replacement_makes_good_what_the_first_has_left() -> None:
    one = planner(network(), "block")
    with one.session.evaluating(), torch.no_grad():
        library = one.library
        alone, fitted = library.chosen(GONE), chosen(one, GONE).chosen
        first = [choice["1.0"][1].stand_in for choice in (alone, fitted)]
        assert all(one is not None for one in first)
        torch.testing.assert_close(*(one.values["weight"] for one in first if one is not None))
        assert off_the_dense_block(library, fitted, "1.1") < off_the_dense_block(library, alone, "1.1")


@pytest.mark.parametrize("norm", [False, True], ids=["no norm", "BatchNorm"])
def test_replacements_on_a_narrowed_stream_have_its_channels(norm: bool) -> None:
    one = planner(network(norm))
    stream = next(name for name, site in one.library.sites.items() if site.groups and name not in GONE)
    group = one.library.sites[stream].groups[0]
    narrow = next(v for v in one.library.sites[stream].variants if len(v.removed.get(group.name, ())) == 3)
    state = chosen(one, {"1.1": "affine 0.01", stream: narrow.name})
    with one.session.evaluating():
        sized, kept = one.library.maker.sized(state.chosen)
        whole, cut = (choice["1.1"][1].stand_in for choice in (state.chosen, sized))
        assert whole is not None
        assert cut is not None
        left = [number for number in range(8) if number not in narrow.removed[group.name]]
        assert kept["1.1"].tolist() == left
        assert torch.equal(cut.values["weight"], whole.values["weight"][left][:, left])
    tuned, divergence = one.finished(state)
    plan, pruned = one.plan(tuned, divergence), copy.deepcopy(one.session.model)
    apply_plan(pruned, plan)
    assert pruned(torch.randn(2, 3, 9, 9)).shape == (2, 5)
    assert one.session.output.divergence(plan.edits, plan.tensors) <= one.session.output.divergence(
        *one.library.maker.edits(state.chosen)
    )


def test_replacements_are_tuned_on_the_output() -> None:
    one = planner(network(), "block")
    state = chosen(one, GONE)
    found, before = one.finished(state)
    with one.session.evaluating():
        assert one.library.scorers.alone.divergence(found) < 0.9 * before


def test_a_map_as_dear_as_the_layer_is_no_replacement() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    batches = [torch.randn(32, 6) for _ in range(4)]
    one = Planner(Session(model, batches), "macs", PruningConfig(kinds=("layer",)))
    with one.session.evaluating():
        assert set(one.unscored.maker.stand_ins["2"]) == {"slope_bias"}


def test_a_choice_that_does_not_run_stays_as_it_is() -> None:
    class Needing(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            if not any(isinstance(block, Plain) for block in self[1]):  # type: ignore[union-attr]
                raise KeyError("no block is left")
            return super().forward(x)

    one = planner(Needing(*network()), "block")
    with one.session.evaluating():
        choice = one.library.chosen({**GONE, "1.2": "affine 0.01"})
        assert one.library.walks.walk(choice) == (choice, {})


def linears() -> nn.Module:
    """Return a network in which the removal of its third linear narrows the second."""
    torch.manual_seed(0)
    sizes = ((243, 12), (12, 12), (12, 8))
    layers = [layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(8, 5)).eval()


def test_a_layer_whose_removal_narrows_an_earlier_one_is_scored_by_the_whole_network() -> None:
    one = planner(linears(), "layer")
    with one.session.evaluating():
        library, output = one.library, one.session.output
        edits, tensors = library.maker.edits(library.chosen({"5": "zero"}))
        assert [edit.unit for edit in edits] == ["3", "5"]
        whole = output.divergence_of(output.pruned(edits, tensors))
        assert library.scored["5"]["zero"].divergence == pytest.approx(whole, rel=1e-4)


def test_a_unit_beside_a_narrowed_layer_leaves_no_replacement_to_tune() -> None:
    one = planner(linears(), "layer")
    found, _ = one.finished(chosen(one, {"3": "slope_bias", "5": "zero"}))
    assert found["3"][1].stand_in is None
