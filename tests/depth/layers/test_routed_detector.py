"""Layers and blocks go from networks whose forward routes by attributes of its stages; what is left is of one piece."""

from __future__ import annotations

import copy
import io
import random

import pytest
import torch
from cases.models.routed import RoutedDetector, fold
from cases.models.tiny import stir
from torch import nn

from prunerecover import apply_plan, find_units, load_pruned, plan_depth, save_pruned
from prunerecover.depth.layers.removals import Removals
from prunerecover.depth.search.goals import conflicting
from prunerecover.graph.trace import trace
from prunerecover.model.batches import as_inputs
from prunerecover.model.replacements import Pool
from prunerecover.plan.units import Unit
from prunerecover.surgery.apply_edits import apply_edits

IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
KINDS = ("layer", "block")


@pytest.fixture(scope="module")
def removals() -> Removals:
    torch.manual_seed(0)
    network = RoutedDetector().eval()
    return Removals(network, trace(network, as_inputs(IMAGES)), KINDS, include_strided=True)


def without(removals: Removals, *names: str) -> nn.Module:
    units = {unit.name: unit for unit in removals.units}
    network = copy.deepcopy(removals.model)
    apply_edits(network, removals.edits([units[name] for name in names]))
    return network


@pytest.mark.parametrize("name", ["model.0.conv", "model.1.conv", "model.3.conv", "model.6.conv"])
def test_a_pooling_stands_where_a_strided_layer_was(removals: Removals, name: str) -> None:
    network = without(removals, name)
    assert isinstance(network.get_submodule(name.rpartition(".")[0]), Pool)
    assert network(IMAGES).shape == (2, 6, 4, 4)


def test_a_block_without_a_shortcut_goes_with_a_layer_in_front_of_it(removals: Removals) -> None:
    assert without(removals, "model.1.conv", "model.2")(IMAGES).shape == (2, 6, 4, 4)


@pytest.mark.parametrize("name", ["model.3.conv", "model.5.cv1.conv", "model.8.conv"])
def test_what_is_left_can_be_folded(removals: Removals, name: str) -> None:
    network = without(removals, name)
    before = network(IMAGES)
    fold(network)
    torch.testing.assert_close(network(IMAGES), before, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_sequences_of_removals_run_and_train(removals: Removals) -> None:
    draw, runs = random.Random(0), 0
    for _ in range(12):
        chosen: list[Unit] = []
        for unit in draw.sample(removals.units, len(removals.units)):
            if len(chosen) < 4 and not any(conflicting(unit, other) for other in chosen):
                chosen.append(unit)
        network = copy.deepcopy(removals.model)
        if not removals.why_not(chosen):
            apply_edits(network, removals.edits(chosen))
            network.train()(IMAGES).sum().backward()
            runs += 1
    assert runs > 4


def test_half_copies_and_pickles_compute_the_same(removals: Removals) -> None:
    network = without(removals, "model.3.conv", "model.5.cv1.conv")
    file = io.BytesIO()
    torch.save(copy.deepcopy(network).half(), file)
    file.seek(0)
    opened = torch.load(file, weights_only=False).float()
    torch.testing.assert_close(opened(IMAGES), network(IMAGES), atol=2e-3, rtol=1e-2)


def test_routes_stay_after_saving_and_loading(tmp_path: object) -> None:
    model = RoutedDetector().eval()
    plan = plan_depth(model, remove={"layer": 4}, batches=[IMAGES, IMAGES], search="one_shot")
    apply_plan(model, plan)
    opened = load_pruned(save_pruned(model, plan, f"{tmp_path}/pruned"), model=RoutedDetector())
    assert torch.equal(opened(IMAGES), model(IMAGES))
    assert [stage.f for stage in opened.model] == [stage.f for stage in RoutedDetector().model]  # type: ignore[union-attr]


@pytest.mark.parametrize("search", ["one_shot", "two_to_one"])
def test_what_cannot_go_after_the_others_is_passed_over(search: str) -> None:
    torch.manual_seed(0)
    model = RoutedDetector().eval()
    units = [unit.name for unit in find_units(model, IMAGES, KINDS, include_strided=True)]
    first = ["model.2", "model.1.conv"]
    ranks = {name: float(first.index(name) if name in first else len(first) + i) for i, name in enumerate(units)}
    plan = plan_depth(
        model,
        remove={"layer": 3, "block": 1},
        batches=[IMAGES, IMAGES],
        importance=lambda context: {unit.name: ranks.get(unit.name, 9.0) for unit in context.units},
        search=search,
        include_strided=True,
    )
    assert sum(map(len, plan.removed.values())) == 4
    apply_plan(model, plan)
    assert model(IMAGES).shape == (2, 6, 4, 4)


def test_a_detector_for_other_classes_is_told_by_its_sizes(tmp_path: object) -> None:
    model = RoutedDetector().eval()
    plan = plan_depth(model, remove={"layer": 1}, batches=[IMAGES, IMAGES], search="one_shot")
    apply_plan(model, plan)
    folder = save_pruned(model, plan, f"{tmp_path}/pruned")
    other = RoutedDetector()
    other.model[9] = nn.Conv2d(16, 8, 1)
    with pytest.raises(ValueError, match=r"tensors have other names or sizes\. .* plan_depth\(model, \.\.\.\)\."):
        load_pruned(folder, model=other)


class Detections(RoutedDetector):
    """Gives as many values as are above a threshold."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x).flatten()
        return scores[scores > 0]


def test_detections_are_ranked_by_a_loss_however_many_are_left() -> None:
    torch.manual_seed(0)
    how = {"remove": {"layer": 3}, "batches": [IMAGES, IMAGES]}
    loss = {"importance": "taylor", "loss": lambda model, batch: model(batch).square().mean()}
    plan = plan_depth(stir(Detections()), **how, **loss)
    assert len(plan.removed["layer"]) == 3
    assert plan.evidence["divergence"] == {}
    with pytest.raises(ValueError, match="the number of detections follows what is detected. Rank by importance='tay"):
        plan_depth(stir(Detections()), **how)
