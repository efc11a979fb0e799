"""The part of a weight that stands in for removed units, as numbers that can be learnt in the pruned network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prunerecover.model.copies import share_copy
from prunerecover.plan.edits import Edit, Narrow
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.compensation import entry_indices
from prunerecover.width.compensation import Reader, readers_of_edits

RATE = 2e-3  # of what a weight changes by in a step, relative to its size


@dataclass(frozen=True)
class TakenOver:
    """What one weight takes over, so that it is `W_kept + W_gone A`; the constant in its bias stays as it was fitted.

    Attributes:
        key: Of the prediction among the plan's tensors.
        coefficients: `(gone, kept)`, A.
        constants: `(gone,)`.
        lost: `(out, gone, rest)`, W_gone; the rest are positions of a kernel or of a flattened map.
        own: `(out, kept, rest)`, W_kept as it was.
        weight: The pruned network's parameter.
        begin: Where the group's entries begin in the second dimension of the weight.
        length: How many there are.
    """

    key: str
    coefficients: Tensor
    constants: Tensor
    lost: Tensor
    own: Tensor
    weight: nn.Parameter
    begin: int
    length: int

    @property
    def value(self) -> Tensor:
        """The coefficients."""
        return self.coefficients

    @property
    def source(self) -> Tensor:
        """The weight that holds them."""
        return self.weight

    @property
    def rate(self) -> float:
        """Adam's, by which all weights change alike, relative to their size; 0 where nothing that went was read."""
        rate = RATE * self.own.square().mean().sqrt() / self.lost.square().sum(1).mean().sqrt()
        return float(rate) if bool(rate.isfinite()) else 0.0

    def take_gradient(self, gradient: Tensor) -> None:
        """Set the gradient of the coefficients, given that of the weight."""
        read = self._entries(gradient).float().reshape(self.own.shape)
        self.coefficients.grad = torch.einsum("ogr,okr->gk", self.lost, read)

    @torch.no_grad()
    def put_in_place(self) -> None:
        """Have the network's weight hold what is learnt."""
        entries = self._entries(self.weight)
        taken_over = torch.einsum("ogr,gk->okr", self.lost, self.coefficients)
        entries.copy_((self.own + taken_over).reshape(entries.shape))

    def prediction(self, coefficients: Tensor | None = None) -> Tensor:
        """Return `(gone, kept + 1)`, as the plan holds it, of other coefficients than these if they are given."""
        own = self.coefficients if coefficients is None else coefficients
        return torch.cat([own, self.constants[:, None]], 1).cpu()

    def _entries(self, weight: Tensor) -> Tensor:
        """Return the group's part of the weight, or of its gradient, a view."""
        return weight.narrow(1, self.begin, self.length)


def first_narrowed(edits: Sequence[Edit], since: int = 0) -> int:
    """Return the number of the first edit that narrows, from one on; that behind the last if none does."""
    return next((i for i, edit in enumerate(edits) if i >= since and isinstance(edit, Narrow)), len(edits))


def numbers_in_memory(network: nn.Module, edits: Sequence[Edit], tensors: Mapping[str, Tensor]) -> int:
    """Return about how many numbers learning takes: coefficients, gradients, Adam's two averages, and dense weights.

    Args:
        network: With all edits.
        edits: Those whose tensors are learnt.
        tensors: Of the edits.
    """
    total = 0
    for key in (key for edit in edits if isinstance(edit, Narrow) for key in edit.tensors):
        gone, kept = tensors[key][:, :-1].shape
        total += 4 * gone * kept + network.get_parameter(key.partition(".")[2]).numel() * (gone + kept) // kept
    return total


def taken_over(
    model: nn.Module, network: nn.Module, edits: Sequence[Edit], tensors: Mapping[str, Tensor], since: int = 0
) -> list[TakenOver]:
    """List what weights take over, as it is before anything is learnt.

    Args:
        model: As it is before the first edit.
        network: The same with all edits; its weights may be written.
        edits: In order; each names tensors as those before leave them.
        tensors: Of the edits.
        since: The first edit whose tensors are learnt. From the first one on that narrows, all do, no group twice.
    """
    first = first_narrowed(edits, since)
    before, narrowing = share_copy(model), [edit for edit in edits[first:] if isinstance(edit, Narrow)]
    apply_edits(before, edits[:first], tensors)
    found = []
    for edit, readers in zip(narrowing, readers_of_edits(narrowing), strict=True):
        keys = {key.partition(".")[2]: key for key in edit.tensors}
        for reader in readers:
            if (key := keys.get(reader.part.tensor)) is not None:
                found.append(_of_reader(before, network, narrowing, edit, reader, key, tensors[key]))
    return found


def _of_reader(
    model: nn.Module,
    network: nn.Module,
    narrowing: Sequence[Narrow],
    edit: Narrow,
    reader: Reader,
    key: str,
    prediction: Tensor,
) -> TakenOver:
    """Return what a reader takes over, given the model before and after what is narrowed."""
    dense = model.get_parameter(reader.part.tensor).detach().float()
    weight = network.get_parameter(reader.part.tensor)
    rows, columns = (_left(narrowing, reader.part.tensor, dim, dense.shape[dim]).to(dense.device) for dim in (0, 1))
    offset, per_unit = reader.part.offsets[0], reader.per_unit
    gone, kept = (entry_indices(units, per_unit).to(dense.device) for units in (edit.gone, edit.keep))
    read = dense[rows].narrow(1, offset, reader.size * reader.part.span)
    entries = torch.unflatten(read, 1, (reader.size * per_unit, -1)).flatten(2)
    prediction = prediction.to(dense.device, torch.float32)
    return TakenOver(
        key=key,
        coefficients=prediction[:, :-1].clone(),
        constants=prediction[:, -1],
        lost=entries[:, gone],
        own=entries[:, kept],
        weight=weight,
        begin=int((columns < offset).sum()),
        length=len(edit.keep) * reader.part.span,
    )


def _left(narrowing: Sequence[Narrow], tensor: str, dim: int, size: int) -> Tensor:
    """Return the indices along a dimension of a tensor that none of the edits takes out."""
    left = torch.arange(size)
    for edit in narrowing:
        for part in edit.group:
            if (part.tensor, part.dim) == (tensor, dim):
                stays = torch.ones(len(left), dtype=torch.bool)
                stays[part.indices(torch.tensor(edit.gone, dtype=torch.long))] = False
                left = left[stays]
    return left
