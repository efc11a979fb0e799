"""Compared parts of the output of a network: a single tensor, or several for a known structure.

Structures are recognised by the names in libraries: transformers' detectors, several heads, embeddings and dense
predictions, torchvision's detectors and segmentation, and networks with a plain dict or tuple of heads. Any other
output is a single tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from prunerecover.model.batches import ModelInputs, predictions_of, without_padding
from prunerecover.refusal import Refusal

PICKED = "picked_detections"  # outputs of torchvision's detectors, with a different number per image
EMBEDDINGS = ("_embeds", "_embedding")  # transformers' names; sentence-transformers'
PIXELS, DEPTHS = "out", "predicted_depth"  # torchvision's segmentation; transformers' estimates of depth


class OtherShape(Refusal):
    """Refusal of a pruned output with another shape than the dense output."""


@dataclass(frozen=True)
class Parts:
    """Parts of an output of known structure.

    Attributes:
        structure: Name of the divergence to compare by.
        tensors: Tensors by name.
    """

    structure: str
    tensors: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Size of the tensors in memory."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def each(self, change: Callable[[Tensor], Tensor]) -> Parts:
        """Return the parts with every tensor changed."""
        return replace(self, tensors={name: change(tensor) for name, tensor in self.tensors.items()})


Outputs = Tensor | Parts


def compared(output: Any) -> Outputs:
    """Return the compared parts of the output of a network.

    Raises:
        TypeError: If the output holds no floating-point tensor.

    >>> import torch
    >>> compared({"logits": torch.zeros(1, 5, 3), "pred_boxes": torch.zeros(1, 5, 4)}).structure
    'detection_set'
    """
    found = None
    if isinstance(output, Mapping):
        found = _named(output)
    elif isinstance(output, tuple | list):
        found = _picked(output) or _heads({str(number): head for number, head in enumerate(output)}, alike=True)
    return predictions_of(output) if found is None else found


def tensors_of(outputs: Outputs) -> Mapping[str, Tensor]:
    """Return the tensors of outputs by name."""
    return outputs.tensors if isinstance(outputs, Parts) else {"": outputs}


def each(outputs: Outputs, change: Callable[[Tensor], Tensor]) -> Outputs:
    """Return outputs with every tensor changed."""
    return outputs.each(change) if isinstance(outputs, Parts) else change(outputs)


def unpadded(outputs: Outputs, inputs: ModelInputs) -> Outputs:
    """Return outputs without padded positions; see `without_padding`."""
    return each(outputs, lambda tensor: without_padding(tensor, inputs))


def comparable(outputs: Outputs, samples: int) -> bool:
    """Whether all outputs are floating-point numbers with a dimension of samples.

    Class numbers are not comparable: neighbouring numbers are not similar.
    """

    def is_comparable(output: Tensor) -> bool:
        first = output.shape[: 2 if output.ndim > 2 else 1]  # samples are second in `(T, N, C)`
        return output.is_floating_point() and samples in first

    return all(map(is_comparable, tensors_of(outputs).values()))


def by_sample(outputs: Outputs, samples: int) -> bool:
    """Whether samples are the first dimension of all outputs."""
    return all(output.shape[:1] == (samples,) for output in tensors_of(outputs).values())


def check_alike(dense: Outputs, pruned: Outputs) -> None:
    """Raise OtherShape unless both have the same parts of the same shapes, except the number of picked detections."""
    dims = 1 if isinstance(dense, Parts) and dense.structure == PICKED else None
    shapes = [
        {name: tuple(each.shape[:dims]) for name, each in tensors_of(outputs).items()} for outputs in (dense, pruned)
    ]
    if shapes[0] != shapes[1]:
        wanted, got = (next(iter(by.values())) if list(by) == [""] else by for by in shapes)
        raise OtherShape(
            f"an output of shape {wanted}, as the dense network's",
            f"got {got}: the number of detections follows what is detected",
            "Rank by importance='taylor' with a loss.",
        )


def _named(output: Mapping[str, Any]) -> Parts | None:
    """Return the parts recognised by names; None: a single tensor to compare."""
    given = {name: value for name, value in output.items() if _is_number(value)}
    logits = given.get("logits")
    if logits is not None and "pred_boxes" in given:
        return Parts("detection_set", {name: given[name] for name in ("logits", "pred_boxes")})
    for name in ("logits", PIXELS):
        if name in given and given[name].ndim == 4 and given[name].shape[1] > 1:
            return Parts("dense_prediction", {name: given[name]})
    if logits is not None:
        return None
    if embeddings := {name: value for name, value in given.items() if name.endswith(EMBEDDINGS)}:
        return Parts("cosine", embeddings)
    if DEPTHS in given:
        return Parts("relative", {DEPTHS: given[DEPTHS]})
    hidden = given.get("last_hidden_state")
    if hidden is not None:
        return Parts("cosine", {"last_hidden_state": hidden}) if hidden.ndim == 3 else None
    named = {name: value for name, value in given.items() if name.endswith("_logits")}
    plain = type(output) is dict and len(given) == len(output)
    return _heads(named) or (_heads({n: v for n, v in given.items() if not n.startswith("aux")}) if plain else None)


def _picked(output: Sequence[Any]) -> Parts | None:
    """Return the selected detections of each image, padded with detections of score 0; None for other outputs."""
    names = ("scores", "boxes", "labels")
    if not output or not all(isinstance(one, Mapping) and one.keys() >= {*names} for one in output):
        return None
    return Parts(PICKED, {name: pad_sequence([one[name].float() for one in output], True) for name in names})


def _heads(heads: Mapping[str, Any], *, alike: bool = False) -> Parts | None:
    """Return several heads for the same samples; None for a single head or other outputs.

    Args:
        heads: Heads by name.
        alike: Whether dimensions must show heads: equally many dimensions of different sizes, as tensors of equal shape
            are averaged.
    """
    if len(heads) < 2 or not all(map(_is_number, heads.values())):
        return None
    shapes = [tuple(head.shape) for head in heads.values()]
    if len({shape[0] for shape in shapes}) > 1:
        return None
    if alike and (len({len(shape) for shape in shapes}) > 1 or len(set(shapes)) == 1):
        return None
    return Parts("heads", dict(heads))


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 0
