"""Divergence of sets of detections without an order: DETR-like queries, and selected detections of a detector.

Each detection of the dense network is paired with a detection of the pruned network, by the pairing of least divergence
(Kuhn 1955): a permutation changes nothing. Parts are compared as in `detections`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from prunerecover.divergence.detections import Detections, by_part, spread_of, terms_of
from prunerecover.divergence.terms import LEAST


def detection_set(dense: Mapping[str, Tensor], pruned: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the divergence of sets of detections, by part.

    Args:
        dense: Outputs of the dense network: "logits", `(N, queries, classes)`, the last class for no object if most
            queries choose that class, and "pred_boxes", `(N, queries, 4)`.
        pruned: Outputs of the pruned network, in the same form.
    """
    last = dense["logits"].shape[-1] - 1
    spare = last > 0 and bool((dense["logits"].argmax(-1) == last).float().mean() > 0.5)
    ours, theirs = (_detections(outputs, spare) for outputs in (dense, pruned))
    return by_part(ours, theirs.places(pairs(ours, theirs)))


def picked_detections(dense: Mapping[str, Tensor], pruned: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the divergence of selected detections, in possibly different numbers.

    Args:
        dense: Outputs of the dense network: "scores", `(N, Q)`, "boxes", `(N, Q, 4)`, and "labels", `(N, Q)`; a score
            of 0 marks padding.
        pruned: Outputs of the pruned network, in the same form.
    """
    each = dense, pruned
    number = max(outputs["scores"].shape[1] for outputs in each)
    classes = 1 + max((int(outputs["labels"].max()) for outputs in each if outputs["labels"].numel()), default=0)
    ours, theirs = (_picked(outputs, number, classes) for outputs in each)
    return by_part(ours, theirs.places(pairs(ours, theirs)))


@torch.no_grad()
def pairs(dense: Detections, pruned: Detections) -> Tensor:
    """Return the index of the paired detection of the pruned network for each dense detection, `(N, Q)`."""
    spread, found = spread_of(dense), []
    for number in range(len(dense.objects)):
        each, all_others = dense.reshaped(lambda x: x[number, :, None]), pruned.reshaped(lambda x: x[number, None])  # noqa: B023  (called at once)
        cost = reduce(torch.add, terms_of(each, all_others, spread).values())
        columns = linear_sum_assignment(cost.nan_to_num(posinf=1e30).cpu().numpy())[1]
        found.append(torch.from_numpy(columns).to(dense.objects.device))
    return torch.stack(found)


def _picked(outputs: Mapping[str, Tensor], number: int, classes: int) -> Detections:
    missing = number - outputs["scores"].shape[1]
    scores, labels = (F.pad(outputs[name], (0, missing)) for name in ("scores", "labels"))
    boxes = F.pad(outputs["boxes"], (0, 0, 0, missing))
    return Detections(scores, boxes, F.one_hot(labels.long(), classes).float(), exclusive=True)


def _detections(outputs: Mapping[str, Tensor], spare: bool) -> Detections:
    logits, boxes = outputs["logits"].float(), outputs["pred_boxes"].float()
    if not spare:
        classes = logits.sigmoid()
        return Detections(classes.amax(-1), boxes, classes, exclusive=False)
    every = logits.softmax(-1)
    objects = 1 - every[..., -1]
    return Detections(objects, boxes, every[..., :-1] / objects.clamp_min(LEAST)[..., None], exclusive=True)
