"""Objects, boxes and classes are each compared in appropriate terms, in all layouts of detectors."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from prunerecover.divergence.detection_map import MapLayout, detection_map, layout_of
from prunerecover.divergence.detection_set import _detections, detection_set
from prunerecover.divergence.detections import by_part
from prunerecover.divergence.outputs import Outputs, comparable, compared
from prunerecover.divergence.registry import output_divergence, output_parts, total
from prunerecover.divergence.terms import LEAST

GRID, CLASSES = 8, 5


def cells(seed: int = 0, n: int = 3) -> Tensor:
    """Return outputs of FastestDet's form: objectness, raw box numbers, and classes."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(n, 5 + CLASSES, GRID, GRID, generator=generator)
    return torch.cat([values[:, :1].sigmoid(), values[:, 1:5], values[:, 5:].softmax(1)], 1)


def places(seed: int = 0, n: int = 3) -> Tensor:
    """Return outputs of a YOLO head: boxes in pixels, and class probabilities."""
    generator = torch.Generator().manual_seed(seed)
    return torch.cat(
        [352 * torch.rand(n, 4, 60, generator=generator), torch.rand(n, CLASSES, 60, generator=generator)], 1
    )


def queries(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 4, CLASSES + 1, generator=generator)
    return {"logits": logits, "pred_boxes": torch.rand(1, 4, 4, generator=generator)}


def test_layouts_are_told_by_values() -> None:
    assert layout_of(cells()) == MapLayout(1, 1, 0, (5, 5 + CLASSES))
    assert layout_of(places()) == MapLayout(1, 0, None, (4, 4 + CLASSES))
    assert layout_of(places().transpose(1, 2)) == MapLayout(2, 0, None, (4, 4 + CLASSES))
    swapped = torch.cat([cells()[:, 5:], cells()[:, 1:5], cells()[:, :1]], 1)
    assert layout_of(swapped) == MapLayout(1, CLASSES, CLASSES + 4, (0, CLASSES))
    tokens = torch.cat([3 + torch.rand(1, 4, 3), torch.rand(1, 1, 3)], 1)  # of five the last one is sure of nothing
    others = torch.randn(2, 9, 4, 4), torch.rand(2, 9, 4, 4), torch.randn(2, 9), torch.rand(2, 3, 50), tokens
    for other in (*others, cells().to(torch.complex64)):
        assert layout_of(other) is None
    with pytest.raises(ValueError, match=r"a detection map, .* but got an output of shape \(2, 9\) that is none"):
        detection_map(torch.randn(2, 9), torch.randn(2, 9))


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_box_moved_by_a_pixel_is_not_a_class_changed(channels_last: bool) -> None:
    dense = places()
    moved, changed = dense.clone(), dense.clone()
    moved[:, 0] += 1
    changed[:, 4:] = changed[:, 4:].roll(1, 1)
    if channels_last:
        dense, moved, changed = (each.transpose(1, 2) for each in (dense, moved, changed))
    by_pixel, by_class = (detection_map(dense, each) for each in (moved, changed))
    assert by_pixel["classes"] == by_pixel["objects"] == by_class["boxes"] == 0
    assert 0 < total(by_pixel) < 1e-3 * total(by_class)


def test_what_is_said_where_no_object_is_does_not_count() -> None:
    dense = cells()
    dense[:, 0, : GRID // 2] = 0
    pruned = dense.clone()
    pruned[:, 1:, : GRID // 2] = cells(1)[:, 1:, : GRID // 2]
    assert total(detection_map(dense, pruned)) == 0
    pruned[:, 0, : GRID // 2] = 0.5  # but an object that is none does
    assert detection_map(dense, pruned)["objects"] > 0


def test_divergence_is_the_formula_of_its_parts() -> None:
    dense, pruned = cells(0).double(), cells(1).double()
    found = {"objects": 0.0, "boxes": 0.0, "classes": 0.0}
    spread = dense[:, 1:5].transpose(0, 1).flatten(1).var(1, correction=0)
    for ours, theirs in zip(dense.flatten(2), pruned.flatten(2), strict=True):
        number = max(ours[0].sum().item(), 1)
        for p, q in zip(ours.T, theirs.T, strict=True):
            kl = torch.distributions.kl_divergence(*(torch.distributions.Bernoulli(each[0]) for each in (p, q)))
            found["objects"] += kl.item() / number / len(dense)
            found["boxes"] += (p[0] * ((p[1:5] - q[1:5]) ** 2 / spread).mean()).item() / number / len(dense)
            kinds = (torch.distributions.Categorical(each[5:]) for each in (p, q))
            found["classes"] += (p[0] * torch.distributions.kl_divergence(*kinds)).item() / number / len(dense)
    assert {name: value.item() for name, value in detection_map(dense, pruned).items()} == pytest.approx(
        found, rel=1e-4
    )


def test_picked_detections_are_sets_of_any_number() -> None:
    def picked(*numbers: int) -> Outputs:
        boxes = torch.tensor([[0.0, 0, 9, 9], [20, 20, 60, 40], [70, 10, 90, 50]])
        labels, scores = torch.tensor([1, 2, 2]), torch.tensor([0.9, 0.8, 0.7])
        one = {"boxes": boxes[list(numbers)], "labels": labels[list(numbers)], "scores": scores[list(numbers)]}
        return compared([one])

    dense = picked(0, 1, 2)
    assert output_divergence(dense, picked(2, 0, 1)).item() == pytest.approx(0, abs=1e-6)
    found = output_parts(dense, picked(1, 0))
    assert isinstance(found, dict)
    missing = 0.7 * math.log(0.7 / LEAST) + 0.3 * math.log(0.3)  # the third is not there: nothing else is wrong
    assert found["objects"].item() == pytest.approx(missing / 2.4, rel=1e-3)
    more = output_parts(picked(0, 1), dense)
    assert isinstance(more, dict)
    assert more["objects"].item() == pytest.approx(-math.log(0.3) / 1.7, rel=1e-3)
    assert more["boxes"] == more["classes"] == 0
    assert output_divergence(picked(), picked()).item() == 0
    assert comparable(picked(), 1)


@pytest.mark.parametrize("spare", [4, -4])
def test_queries_are_paired_as_well_as_any_pairing_does(spare: int) -> None:
    dense, pruned = queries(0), queries(1)
    dense["logits"][..., -1] += spare

    def paired(order: tuple[int, ...]) -> float:
        """Return the divergence of queries in this order."""
        theirs = {name: value[:, list(order)] for name, value in pruned.items()}
        return float(total(by_part(_detections(dense, spare > 0), _detections(theirs, spare > 0))))

    best = min(paired(order) for order in itertools.permutations(range(4)))
    assert float(total(detection_set(dense, pruned))) == pytest.approx(best, rel=1e-5)
    mixed = {name: value[:, [2, 0, 3, 1]] for name, value in dense.items()}
    assert total(detection_set(dense, mixed)) == 0
    twice = [{name: value.repeat(2, 1, 1) for name, value in each.items()} for each in (dense, pruned)]
    assert float(total(detection_set(*twice))) == pytest.approx(best, rel=1e-5)
