"""Divergence of detection maps: tensors with a box, classes, and an object probability at each place.

Examples are `(N, 1 + 4 + classes, H, W)` of FastestDet, and the outputs of YOLO heads in evaluation mode, `(N, 4 +
classes, places)`. Detection maps are recognised by their values: all channels are probabilities at every place, except
four neighbours. Without a channel for objects, the object probability is the largest class probability.

Not covered: boxes as shares of the image, which look like probabilities; wrap `detection_map` in a custom function for
such boxes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from prunerecover.divergence.detections import Detections, by_part
from prunerecover.refusal import Refusal

COORDINATES = 4
PLACES = 16  # minimum to recognise a map by values
NEAR = 1e-3  # tolerance of sums of probabilities around 1


@dataclass(frozen=True)
class MapLayout:
    """Positions of the parts of a detection map.

    Attributes:
        dim: Dimension of the channels.
        first: First channel of the boxes, with `COORDINATES` channels.
        objects: Channel of the object probability; None: no such channel.
        classes: First channel of the classes, and the channel behind the last.
    """

    dim: int
    first: int
    objects: int | None
    classes: tuple[int, int]

    def exclusive(self, output: Tensor) -> bool:
        """Whether the class probabilities of every place sum to one."""
        classes = output.narrow(self.dim, self.classes[0], self.classes[1] - self.classes[0])
        return bool((classes.float().sum(self.dim) - 1).abs().max() < NEAR)

    def detections(self, output: Tensor, exclusive: bool) -> Detections:
        """Return the detections of a map."""
        places = output.float().movedim(self.dim, -1).flatten(1, -2)
        classes = places[..., slice(*self.classes)]
        objects = classes.amax(-1) if self.objects is None else places[..., self.objects]
        return Detections(objects, places[..., self.first : self.first + COORDINATES], classes, exclusive)


def detection_map(dense: Tensor, pruned: Tensor) -> dict[str, Tensor]:
    """Return the divergence of a detection map, by part; see `detections`.

    Raises:
        ValueError: If the output of the dense network is no such map.
    """
    layout = layout_of(dense)
    if layout is None:
        raise Refusal(
            "a detection map, in which all channels but four neighbours are probabilities",
            f"got an output of shape {tuple(dense.shape)} that is none",
            "Leave divergence out.",
        )
    exclusive = layout.exclusive(dense)
    return by_part(layout.detections(dense, exclusive), layout.detections(pruned, exclusive))


def layout_of(output: Tensor) -> MapLayout | None:
    """Return the layout of a detection map; None for other tensors."""
    if output.ndim < 3 or not output.is_floating_point():
        return None
    return next((found for dim in (1, output.ndim - 1) if (found := _along(output, dim)) is not None), None)


def _along(output: Tensor, dim: int) -> MapLayout | None:
    channels = output.shape[dim]
    if output.numel() < PLACES * channels or channels <= COORDINATES:
        return None
    if len(_no_probabilities(output[:1], dim)) > COORDINATES:  # a single image is quick to check
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
    """Return the channels with a value outside 0 to 1 at some place."""
    others = [other for other in range(output.ndim) if other != dim]
    wrong = (output.amin(others) < 0) | (output.amax(others) > 1)
    return [int(channel) for channel in wrong.nonzero().flatten()]
