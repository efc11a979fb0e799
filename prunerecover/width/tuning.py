"""Refitting of weights for removed units by least squares, and tuning on the network's output.

Ridge regression is the start of `calibration.learning` on the same samples. Only the coefficients of the prediction are
learnt: the plan holds the same tensors, and the cost is unchanged. The best epoch is the best on samples perhaps used
for learning, too: too long steps show there, and perhaps no epoch is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prunerecover.calibration.learning import tuned_on_output
from prunerecover.calibration.samples import CalibrationSet
from prunerecover.calibration.steps import steps_of
from prunerecover.model.checks import is_differentiable
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import ordinary_arithmetic
from prunerecover.plan.edits import Edit, Narrow
from prunerecover.session.pruned_output import PrunedOutput
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.compensation import entry_indices
from prunerecover.width.compensation import Reader, fitted_tensors, readers_of_edits

RATE = 2e-3  # change of a weight in a step, relative to its size
SAMPLES = 32  # in a step, at most
MOST_NUMBERS = 1 << 30  # in single precision, 4 GiB


def fitted_and_tuned(
    edits: Sequence[Edit],
    tensors: Mapping[str, Tensor],
    samples: CalibrationSet,
    judge: PrunedOutput,
    since: int = 0,
) -> dict[str, Tensor]:
    """Return the tensors of edits, with narrowed weights fitted by least squares and tuned on the output.

    Args:
        edits: Edits in order; tensors are named as after the earlier edits.
        tensors: Tensors of the edits before the first fitted edit.
        samples: Samples; all of them are fitted on.
        judge: Comparison of outputs with the dense model's, which chooses the best epoch. Its samples may be among
            `samples`; the divergence measured afterwards is too small then.
        since: Number of the first edit with fitted tensors; earlier tensors stay unchanged.
    """
    first = first_narrowed(edits, since)
    narrowing = [edit for edit in edits[first:] if isinstance(edit, Narrow)]
    found = {**tensors, **fitted_tensors(judge.pruned(edits[:first], tensors), narrowing, samples.whole)}
    return tuned_tensors(edits, found, samples, judge, first)


@ordinary_arithmetic()
def tuned_tensors(
    edits: Sequence[Edit],
    tensors: Mapping[str, Tensor],
    samples: CalibrationSet,
    judge: PrunedOutput,
    since: int = 0,
) -> dict[str, Tensor]:
    """Return the tensors of edits, with narrowed weights tuned for the least divergence of the output.

    The tensors stay unchanged if there are too few samples, the output cannot be compared, memory has no room, or the
    model takes no gradients.

    Args:
        edits: Edits, as in `fitted_and_tuned`.
        tensors: Tensors of all edits.
        samples: Samples for learning.
        judge: Comparison of outputs, which chooses the best epoch.
        since: Number of the first edit with fitted tensors, as in `fitted_and_tuned`.
    """
    model, given = judge.model, dict(tensors)
    if not (judge.comparable and is_differentiable(model)):
        return given
    network = judge.pruned(edits, given)
    if not 0 < numbers_in_memory(network, edits[since:], given) <= MOST_NUMBERS:
        return given
    steps = steps_of(model, samples.whole, samples.further, SAMPLES)
    if not steps.enough:
        return given
    learnt = taken_over(model, network, edits, given, since)
    for one in learnt:
        one.source.requires_grad_()

    def divergence() -> float:
        return judge.divergence(edits, {**given, **{one.key: one.prediction() for one in learnt}})

    _, found = tuned_on_output(network, learnt, steps, divergence, what="what weights take over")
    return given | {one.key: one.prediction(value) for one, value in zip(learnt, found, strict=False)}


@dataclass(frozen=True)
class TakenOver:
    """Compensation in one weight, `W_kept + W_gone A`; the constant in the bias keeps its fitted value.

    Attributes:
        key: Key of the prediction among the plan's tensors.
        value: Coefficients A, `(gone, kept)`.
        constants: Constants c, `(gone,)`.
        lost: Weights of removed units W_gone, `(out, gone, rest)`; the rest are positions of a kernel or of a flattened
            map.
        own: Weights of kept units W_kept before compensation, `(out, kept, rest)`.
        source: Weight of the pruned network.
        begin: First entry of the group in the second dimension of the weight.
        length: Number of the group's entries.
    """

    key: str
    value: Tensor
    constants: Tensor
    lost: Tensor
    own: Tensor
    source: nn.Parameter
    begin: int
    length: int

    @property
    def rate(self) -> float:
        """Learning rate for Adam, with equal relative changes of all weights; 0 if no removed unit was read."""
        rate = RATE * self.own.square().mean().sqrt() / self.lost.square().sum(1).mean().sqrt()
        return float(rate) if bool(rate.isfinite()) else 0.0

    def take_gradient(self, gradient: Tensor) -> None:
        """Set the gradient of the coefficients from the gradient of the weight."""
        read = self._entries(gradient).float().reshape(self.own.shape)
        self.value.grad = torch.einsum("ogr,okr->gk", self.lost, read)

    @torch.no_grad()
    def put_in_place(self) -> None:
        """Write the learnt coefficients into the network's weight."""
        entries = self._entries(self.source)
        taken_over = torch.einsum("ogr,gk->okr", self.lost, self.value)
        entries.copy_((self.own + taken_over).reshape(entries.shape))

    def prediction(self, coefficients: Tensor | None = None) -> Tensor:
        """Return the prediction `(gone, kept + 1)` in the plan's form, of the given or the present coefficients."""
        own = self.value if coefficients is None else coefficients
        return torch.cat([own, self.constants[:, None]], 1).cpu()

    def _entries(self, weight: Tensor) -> Tensor:
        """Return the group's part of the weight, or of its gradient, as a view."""
        return weight.narrow(1, self.begin, self.length)


def first_narrowed(edits: Sequence[Edit], since: int = 0) -> int:
    """Return the number of the first narrowing edit from `since` on; the number of edits if there is none."""
    return next((i for i, edit in enumerate(edits) if i >= since and isinstance(edit, Narrow)), len(edits))


def numbers_in_memory(network: nn.Module, edits: Sequence[Edit], tensors: Mapping[str, Tensor]) -> int:
    """Return the approximate count of numbers in learning: coefficients, gradients, Adam's two averages, dense weights.

    Args:
        network: Network after all edits.
        edits: Edits with learnt tensors.
        tensors: Tensors of the edits.
    """
    total = 0
    for key in (key for edit in edits if isinstance(edit, Narrow) for key in edit.tensors):
        gone, kept = tensors[key][:, :-1].shape
        total += 4 * gone * kept + network.get_parameter(key.partition(".")[2]).numel() * (gone + kept) // kept
    return total


def taken_over(
    model: nn.Module, network: nn.Module, edits: Sequence[Edit], tensors: Mapping[str, Tensor], since: int = 0
) -> list[TakenOver]:
    """List the compensations of weights before learning.

    Args:
        model: Network before the first edit.
        network: Copy of the network after all edits; its weights may be written.
        edits: Edits in order; tensors are named as after the earlier edits.
        tensors: Tensors of the edits.
        since: Number of the first edit with learnt tensors. From the first narrowing edit on, all edits narrow, no
            group twice.
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
    """Return the compensation of a reader, given the model before and after narrowing."""
    dense = model.get_parameter(reader.part.tensor).detach().float()
    rows, columns = (_left(narrowing, reader.part.tensor, dim, dense.shape[dim]).to(dense.device) for dim in (0, 1))
    offset, per_unit = reader.part.offsets[0], reader.per_unit
    gone, kept = (entry_indices(units, per_unit).to(dense.device) for units in (edit.gone, edit.keep))
    read = dense[rows].narrow(1, offset, reader.size * reader.part.span)
    entries = torch.unflatten(read, 1, (reader.size * per_unit, -1)).flatten(2)
    prediction = prediction.to(dense.device, torch.float32)
    return TakenOver(
        key=key,
        value=prediction[:, :-1].clone(),
        constants=prediction[:, -1],
        lost=entries[:, gone],
        own=entries[:, kept],
        source=network.get_parameter(reader.part.tensor),
        begin=int((columns < offset).sum()),
        length=len(edit.keep) * reader.part.span,
    )


def _left(narrowing: Sequence[Narrow], tensor: str, dim: int, size: int) -> Tensor:
    """Return the indices along a dimension of a tensor that no edit removes."""
    left = torch.arange(size)
    for edit in narrowing:
        for part in edit.group:
            if (part.tensor, part.dim) == (tensor, dim):
                stays = torch.ones(len(left), dtype=torch.bool)
                stays[part.indices(torch.tensor(edit.gone, dtype=torch.long))] = False
                left = left[stays]
    return left
