"""Divergence of detection maps: tensors that hold, at each place, a box, classes, and how likely an object is.

Such are FastestDet's `(N, 1 + 4 + classes, H, W)`, and what YOLO's heads give in evaluation mode,
`(N, 4 + classes, places)`. They are told by their values: among channels that are probabilities at every place, four
neighbours are not. Maps without a channel for objects have one where some class is likely.

Not covered: boxes as shares of the image, which look like probabilities; call `detection_map` through a function of
your own for these.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from prunerecover.divergence.detections import Detections, by_part
from prunerecover.refusal import Refusal

COORDINATES = 4
PLACES = 16  # of fewer, values tell nothing
NEAR = 1e-3  # of 1, for sums of probabilities


@dataclass(frozen=True)
class MapLayout:
    """Where the parts of a detection map are.

    Attributes:
        dim: Of the channels.
        first: Channel of the boxes, which are `COORDINATES` wide.
        objects: Channel of the probability that there is an object; None: there is none.
        classes: First and last channel of the classes, and one more.
    """

    dim: int
    first: int
    objects: int | None
    classes: tuple[int, int]

    def detections(self, output: Tensor, exclusive: bool) -> Detections:
        """Return what a map says of each place."""
        places = output.float().movedim(self.dim, -1).flatten(1, -2)
        classes = places[..., slice(*self.classes)]
        objects = classes.amax(-1) if self.objects is None else places[..., self.objects]
        return Detections(objects, places[..., self.first : self.first + COORDINATES], classes, exclusive)


def detection_map(dense: Tensor, pruned: Tensor) -> dict[str, Tensor]:
    """Return the divergence of a detection map, by part; see `detections`.

    Raises:
        ValueError: If the dense network's output is no such map.
    """
    layout = layout_of(dense)
    if layout is None:
        raise Refusal(
            "a detection map, in which all channels but four neighbours are probabilities",
            f"got an output of shape {tuple(dense.shape)} that is none",
            "Leave divergence out.",
        )
    classes = dense.narrow(layout.dim, layout.classes[0], layout.classes[1] - layout.classes[0])
    exclusive = bool((classes.float().sum(layout.dim) - 1).abs().max() < NEAR)
    return by_part(layout.detections(dense, exclusive), layout.detections(pruned, exclusive))


def layout_of(output: Tensor) -> MapLayout | None:
    """Return where the parts of a detection map are; None if a tensor is no such map."""
    if output.ndim < 3 or not output.is_floating_point():
        return None
    return next((found for dim in (1, output.ndim - 1) if (found := _along(output, dim)) is not None), None)


def _along(output: Tensor, dim: int) -> MapLayout | None:
    channels = output.shape[dim]
    if output.numel() < PLACES * channels or channels <= COORDINATES:
        return None
    if len(_no_probabilities(output[:1], dim)) > COORDINATES:  # one image is soon read
        return None
    boxes = _no_probabilities(output, dim)
    if len(boxes) != COORDINATES or boxes[-1] - boxes[0] != COORDINATES - 1:
        return None
    first, behind = boxes[0], boxes[-1] + 1
    before, after = (0, first), (behind, channels)
    if first == 0 or behind == channels:
        return MapLayout(dim, first, None, after if first == 0 else before)
    if first == 1:
        return MapLayout(dim, first, 0, after)
    return MapLayout(dim, first, behind, before) if channels - behind == 1 else None


def _no_probabilities(output: Tensor, dim: int) -> list[int]:
    """Return the channels that are no probabilities at some place."""
    others = [other for other in range(output.ndim) if other != dim]
    wrong = (output.amin(others) < 0) | (output.amax(others) > 1)
    return [int(channel) for channel in wrong.nonzero().flatten()]
