"""Divergence of detections: objects, boxes and classes, each on a scale of its own.

A squared error over all numbers of a detector would weigh the many classes and boxes of places without an object as
much as those of an object. Here objects are compared at all places; boxes and classes are weighted by the object
probability of the dense network. Per image, each part is a mean over objects, at least one:

- objects: KL of the probabilities, in nats;
- boxes: squared error, relative to the variance of the dense boxes, coordinate by coordinate;
- classes: KL of the probabilities, in nats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prunerecover.divergence.terms import one_of, yes_or_no

ALIKE = 1e-4  # lower limit of the variance, relative to the mean square of boxes


@dataclass(frozen=True)
class Detections:
    """Detections at Q places of each of N images.

    Attributes:
        objects: Object probabilities, `(N, Q)`.
        boxes: Boxes in any coordinates, `(N, Q, 4)`.
        classes: Class probabilities, `(N, Q, C)`.
        exclusive: Whether an object has a single class, so the class probabilities sum to one.
    """

    objects: Tensor
    boxes: Tensor
    classes: Tensor
    exclusive: bool

    def reshaped(self, change: Callable[[Tensor], Tensor]) -> Detections:
        """Return the detections with every tensor changed."""
        return replace(self, objects=change(self.objects), boxes=change(self.boxes), classes=change(self.classes))

    def places(self, index: Tensor) -> Detections:
        """Return the detections at other places, `(N, Q)`."""
        rows = torch.arange(len(index), device=index.device)[:, None]
        return self.reshaped(lambda tensor: tensor[rows, index])


def by_part(dense: Detections, pruned: Detections) -> dict[str, Tensor]:
    """Return the divergence of objects, boxes and classes, each the mean over images."""
    objects = dense.objects.sum(1).clamp_min(1)
    terms = terms_of(dense, pruned, spread_of(dense))
    return {name: (term.sum(1) / objects).mean() for name, term in terms.items()}


def terms_of(dense: Detections, pruned: Detections, spread: Tensor) -> dict[str, Tensor]:
    """Return the share of each place in the divergence of objects, boxes and classes.

    Args:
        dense: Detections of the dense network.
        pruned: Detections of the pruned network, in shapes to broadcast.
        spread: Variance from `spread_of`.
    """
    sure = dense.objects
    classes = one_of if dense.exclusive else lambda p, q: yes_or_no(p, q).sum(-1)
    return {
        "objects": yes_or_no(sure, pruned.objects),
        "boxes": sure * ((dense.boxes - pruned.boxes).square() / spread).mean(-1),
        "classes": sure * classes(dense.classes, pruned.classes),
    }


def spread_of(dense: Detections) -> Tensor:
    """Return the variance of each coordinate of the dense boxes, `(4,)`; a small value if all are equal."""
    boxes = dense.boxes[dense.objects > 0]
    if not len(boxes):
        return dense.boxes.new_ones(dense.boxes.shape[-1])
    variance = boxes.var(0, correction=0)
    return variance.clamp_min(max(ALIKE * float(boxes.square().mean()), torch.finfo(variance.dtype).tiny))
