"""Divergence of detections: objects, boxes and classes, each in its own terms.

A squared error of all numbers of a detector's output counts the many classes and the box of a place without an object
as much as those of an object. Here, whether there is an object is compared everywhere; where its box lies, and of which
class it is, count as much as the dense network believes that there is one. Per image, each part is a mean over its
objects, of which there is taken to be one at least:

- objects: KL of the probabilities, in nats;
- boxes: squared error, relative to the variance of the dense network's boxes, coordinate by coordinate;
- classes: KL of the probabilities, in nats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prunerecover.divergence.terms import one_of, yes_or_no

ALIKE = 1e-4  # of the mean square of boxes: no variance is taken to be less


@dataclass(frozen=True)
class Detections:
    """What a network says of Q places, of each of N images.

    Attributes:
        objects: `(N, Q)`, how likely there is an object.
        boxes: `(N, Q, 4)`, in any coordinates.
        classes: `(N, Q, C)`, how likely it is of each class.
        exclusive: Whether an object is of one class, so that these probabilities sum to one.
    """

    objects: Tensor
    boxes: Tensor
    classes: Tensor
    exclusive: bool

    def reshaped(self, change: Callable[[Tensor], Tensor]) -> Detections:
        """Return these with every tensor changed."""
        return replace(self, objects=change(self.objects), boxes=change(self.boxes), classes=change(self.classes))

    def places(self, index: Tensor) -> Detections:
        """Return these at other places, `(N, Q)`."""
        rows = torch.arange(len(index), device=index.device)[:, None]
        return self.reshaped(lambda tensor: tensor[rows, index])


def by_part(dense: Detections, pruned: Detections) -> dict[str, Tensor]:
    """Return the divergence of objects, boxes and classes, each the mean over images."""
    objects = dense.objects.sum(1).clamp_min(1)
    terms = terms_of(dense, pruned, spread_of(dense))
    return {name: (term.sum(1) / objects).mean() for name, term in terms.items()}


def terms_of(dense: Detections, pruned: Detections, spread: Tensor) -> dict[str, Tensor]:
    """Return what each place adds to the divergence of objects, boxes and classes.

    Args:
        dense: Of the dense network.
        pruned: Of the other one, in shapes that can be broadcast to the same.
        spread: What `spread_of` returned.
    """
    sure = dense.objects
    classes = one_of if dense.exclusive else lambda p, q: yes_or_no(p, q).sum(-1)
    return {
        "objects": yes_or_no(sure, pruned.objects),
        "boxes": sure * ((dense.boxes - pruned.boxes).square() / spread).mean(-1),
        "classes": sure * classes(dense.classes, pruned.classes),
    }


def spread_of(dense: Detections) -> Tensor:
    """Return the variance of each coordinate of the dense network's boxes, `(4,)`; a little where all are alike."""
    boxes = dense.boxes[dense.objects > 0]
    if not len(boxes):
        return dense.boxes.new_ones(dense.boxes.shape[-1])
    variance = boxes.var(0, correction=0)
    return variance.clamp_min(max(ALIKE * float(boxes.square().mean()), torch.finfo(variance.dtype).tiny))
