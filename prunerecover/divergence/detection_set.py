"""Divergence of sets of detections: transformers' DETR-like outputs, whose order says nothing.

Each query of the dense network is paired with one of the pruned network's, so that the divergence is as small as any
pairing makes it (Kuhn 1955): a permutation of queries changes nothing. Parts are compared as `detections` describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from prunerecover.divergence.detections import Detections, by_part, spread_of, terms_of
from prunerecover.divergence.terms import LEAST


def detection_set(dense: Mapping[str, Tensor], pruned: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the divergence of sets of detections, by part.

    Args:
        dense: "logits", `(N, queries, classes)`, the last class that of no object if most queries are of it, and
            "pred_boxes", `(N, queries, 4)`.
        pruned: The same of the pruned network.
    """
    last = dense["logits"].shape[-1] - 1
    spare = last > 0 and bool((dense["logits"].argmax(-1) == last).float().mean() > 0.5)
    ours, theirs = (_detections(outputs, spare) for outputs in (dense, pruned))
    return by_part(ours, theirs.places(pairs(ours, theirs)))


@torch.no_grad()
def pairs(dense: Detections, pruned: Detections) -> Tensor:
    """Return which query of the pruned network belongs to each of the dense one's, `(N, Q)`."""
    spread, found = spread_of(dense), []
    for number in range(len(dense.objects)):
        each, all_others = dense.reshaped(lambda x: x[number, :, None]), pruned.reshaped(lambda x: x[number, None])  # noqa: B023  (called at once)
        cost = reduce(torch.add, terms_of(each, all_others, spread).values())
        columns = linear_sum_assignment(cost.nan_to_num(posinf=1e30).cpu().numpy())[1]
        found.append(torch.from_numpy(columns).to(dense.objects.device))
    return torch.stack(found)


def _detections(outputs: Mapping[str, Tensor], spare: bool) -> Detections:
    logits, boxes = outputs["logits"].float(), outputs["pred_boxes"].float()
    if not spare:
        classes = logits.sigmoid()
        return Detections(classes.amax(-1), boxes, classes, exclusive=False)
    every = logits.softmax(-1)
    objects = 1 - every[..., -1]
    return Detections(objects, boxes, every[..., :-1] / objects.clamp_min(LEAST)[..., None], exclusive=True)
