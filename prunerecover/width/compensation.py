"""What kept units can do of what removed ones did: the weights that read a group take it over.

A removed unit's activation is predicted from those of the kept ones, x_gone = A x_kept + c, by ridge regression over
the calibration samples and positions. Wherever weights read the group, W_gone A is added to W_kept, and W_gone c to the
bias if there is one (without one, a recalibrated BatchNorm behind takes up the constant). The cost does not change.
Reconstruction by least squares is that of channel pruning (He et al. 2017, arXiv 1707.06168), here in closed form from
one pass over the dense model, for all readers of a group and all groups at once.

Not covered: what reads a group without a convolution or linear layer of its own (rewritten shortcuts, routed experts),
grouped convolutions, and dimensions of more than `LARGEST` entries, whose second moments would not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from prunerecover.batches import ModelInputs, call
from prunerecover.edits import Narrow
from prunerecover.observing import observing, ordinary_arithmetic, uncompiled
from prunerecover.structure import get_module, parent_path
from prunerecover.width.groups import Slice

RIDGE = 1e-3, 0.1  # relative to the mean variance: always, and times the kept entries per sample
LARGEST = 4096


@dataclass(frozen=True)
class Reader:
    """A weight that reads a group of one edit.

    Attributes:
        edit: Number of the edit.
        part: The group's entries in it, as the model has them before the first edit.
    """

    edit: int
    part: Slice

    @property
    def module(self) -> str:
        """Path of the module that it belongs to."""
        return parent_path(self.part.tensor)


@dataclass
class Moments:
    """First and second moments of a module's input entries, added up; relative to the first batch's mean."""

    count: int = 0
    origin: Tensor | None = None
    first: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    second: Tensor = field(default_factory=lambda: torch.zeros(1, 1, dtype=torch.float64))

    def add(self, rows: Tensor) -> None:
        """Add samples `(n, entries)`."""
        rows = rows.float()
        if self.origin is None:
            self.origin = rows.mean(0)
        rows = rows - self.origin
        self.count += len(rows)
        self.first = self.first + rows.sum(0).double().cpu()
        self.second = self.second + (rows.T @ rows).double().cpu()

    def predict(self, gone: Tensor, kept: Tensor, *, constant: bool = True) -> Tensor:
        """Return `(gone, kept + 1)`: coefficients of the kept entries, and the constant.

        Args:
            gone: Entries to predict.
            kept: Entries to predict from.
            constant: Whether there may be one; False: it is zero.
        """
        assert self.origin is not None, "something was added"
        mean = self.first / self.count
        covariance = self.second / self.count - torch.outer(mean, mean)
        mean = mean + self.origin.double().cpu()
        if not constant:  # moments about zero
            covariance, mean = covariance + torch.outer(mean, mean), torch.zeros_like(mean)
        among = covariance[kept][:, kept]
        strength = RIDGE[0] + RIDGE[1] * len(kept) / self.count
        ridge = strength * among.diagonal().mean()
        if ridge > 0:
            coefficients = torch.linalg.solve(among + ridge * torch.eye(len(kept)), covariance[kept][:, gone]).T
        else:  # nothing varies: there is only the constant
            coefficients = torch.zeros(len(gone), len(kept), dtype=torch.float64)
        return torch.cat([coefficients, (mean[gone] - coefficients @ mean[kept])[:, None]], 1)


def fit_compensation(
    model: nn.Module, edits: Sequence[Narrow], batches: Sequence[ModelInputs]
) -> list[dict[str, Tensor]]:
    """Return per edit what its readers take over: by the reading tensor's path `(gone, kept + 1)`.

    Args:
        model: As it is before the first edit; bit-identical afterwards.
        edits: In order; each names tensors as those before leave them.
        batches: What the model is called with.
    """
    readers = [reader for reader in _readers(edits) if _can_take_over(model, reader, edits[reader.edit])]
    moments: dict[Reader, Moments] = {}
    with ordinary_arithmetic(), observing(model), uncompiled(), _collected(model, readers, edits, moments):
        for inputs in batches if readers else ():  # experts have none
            call(model, inputs)
    found: list[dict[str, Tensor]] = [{} for _ in edits]
    for reader, seen in moments.items():
        edit = edits[reader.edit]
        per_unit = entries_per_unit(edit, reader.part)
        gone, kept = (_spread(units, per_unit) for units in (edit.gone, edit.keep))
        found[reader.edit][reader.part.tensor] = seen.predict(gone, kept).float()
    return found


def take_over(
    weight: Tensor, bias: Tensor | None, part: Slice, edit: Narrow, matrix: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return a reading weight and its bias with the removed units' part added to the kept ones'.

    Args:
        weight: `(out, in, ...)`, as it is before it is cut.
        bias: `(out,)` or None.
        part: The group's entries in it.
        edit: Which units go.
        matrix: `(gone, kept + 1)`, of `fit_compensation`.
    """
    per_unit = entries_per_unit(edit, part)
    matrix = matrix.to(weight.device, torch.float32)
    gone, kept = (_spread(units, per_unit).to(weight.device) for units in (edit.gone, edit.keep))
    length = edit.of * part.span
    read = weight.detach().float().narrow(1, part.offsets[0], length)
    blocks = _parted(read, 1, edit, part)
    lost = blocks[:, gone]
    blocks = blocks.clone()
    blocks[:, kept] += torch.einsum("og...,gk->ok...", lost, matrix[:, :-1])
    new = weight.detach().clone()
    new.narrow(1, part.offsets[0], length).copy_(blocks.flatten(1, 2))
    if bias is None:
        return new, None
    constant = torch.einsum("og...,g->o...", lost, matrix[:, -1]).flatten(1).sum(1)
    return new, (bias.detach() + constant.to(bias.dtype))


def entries_per_unit(edit: Narrow, part: Slice) -> int:
    """Return the entries of a unit that are predicted one by one: those of a head.

    A channel of a flattened map has as many entries as positions, which all follow one prediction.
    """
    return part.span if edit.kind == "head" else 1


def _parted(tensor: Tensor, dim: int, edit: Narrow, part: Slice) -> Tensor:
    """Split a group's entries along `dim` into those that are predicted one by one, and positions."""
    per_unit = entries_per_unit(edit, part)
    shape = list(tensor.shape)
    at = dim % tensor.ndim
    return tensor.reshape(*shape[:at], edit.of * per_unit, part.span // per_unit, *shape[at + 1 :])


def _spread(units: Sequence[int], per_unit: int) -> Tensor:
    return Slice(tensor="", dim=0, span=per_unit).indices(torch.tensor(units, dtype=torch.long))


def _readers(edits: Sequence[Narrow]) -> Iterator[Reader]:
    """List the readers, with their offsets as before the first edit."""
    gone: dict[tuple[str, int], list[int]] = {}
    for number, edit in enumerate(edits):
        before = [_moved_back(part, gone.get((part.tensor, part.dim), [])) for part in edit.group]
        yield from (Reader(number, part) for part in before if not part.makes)
        for part in before:
            indices = part.indices(torch.tensor(edit.gone, dtype=torch.long))
            gone.setdefault((part.tensor, part.dim), []).extend(indices.tolist())


def _moved_back(part: Slice, gone: Sequence[int]) -> Slice:
    offsets = list(part.offsets)
    for index in sorted(gone):
        offsets = [offset + (index <= offset) for offset in offsets]
    return part.model_copy(update={"offsets": tuple(offsets)})


def _can_take_over(model: nn.Module, reader: Reader, edit: Narrow) -> bool:
    part = reader.part
    try:
        module = get_module(model, reader.module)
    except (AttributeError, ValueError):  # a shortcut that is yet to be rewritten
        return False
    plain = isinstance(module, nn.Linear) or (
        isinstance(module, _ConvNd) and module.groups == 1 and not module.transposed
    )
    alone = part.dim == 1 and len(part.offsets) == 1 and part.tensor.rpartition(".")[2] == "weight"
    return plain and alone and edit.of * entries_per_unit(edit, part) <= LARGEST


@contextmanager
def _collected(
    model: nn.Module, readers: Sequence[Reader], edits: Sequence[Narrow], moments: dict[Reader, Moments]
) -> Iterator[None]:
    def watch(reader: Reader) -> Any:
        edit, part = edits[reader.edit], reader.part

        def see(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen: Tensor = (args[0] if args else kwargs["input"]).detach()
            if isinstance(module, _ConvNd):
                seen = seen.movedim(1, -1)
            read = seen.narrow(-1, part.offsets[0], edit.of * part.span)
            rows = _parted(read, -1, edit, part).transpose(-1, -2)
            moments.setdefault(reader, Moments()).add(rows.flatten(0, -2))

        return get_module(model, reader.module).register_forward_pre_hook(see, with_kwargs=True)

    handles = [watch(reader) for reader in readers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
