"""Compensation: weights that read a group are refitted, with removed units predicted from the kept units.

A removed unit's activation is predicted from the kept activations, x_gone = A x_kept + c, by ridge regression over the
calibration samples and positions. Wherever weights read the group, W_gone A is added to W_kept, and W_gone c to the
bias if there is one (without a bias, a recalibrated BatchNorm behind absorbs the constant). The cost does not change.
Reconstruction by least squares follows channel pruning (He et al. 2017, arXiv 1707.06168), here in closed form from one
pass over the dense model, for all readers of a group and all groups at once.

Not covered: readers without a convolution or linear layer of their own (rewritten shortcuts, routed experts), weights
tied to weights of other layers (a head tied to the embedding table), grouped convolutions, and dimensions of more than
`LARGEST` entries, with second moments too large for memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from prunerecover.calibration.moments import LARGEST, Moments
from prunerecover.display.progress import progress
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.evaluation import plain_evaluation
from prunerecover.model.hooks import removed_after
from prunerecover.model.narrow.freeing import attentions_in, with_free_heads
from prunerecover.model.paths import get_module, parent_path
from prunerecover.plan.edits import Edit, Narrow
from prunerecover.plan.groups import Group, Slice
from prunerecover.plan.kinds import WidthKind
from prunerecover.surgery.compensation import entries_per_unit, entry_indices


@dataclass(frozen=True)
class Reader:
    """Weight that reads a group.

    Attributes:
        group: Name of the group.
        kind: Kind of the units.
        size: Number of units.
        part: Entries of the group in the weight, in the dense model.
    """

    group: str
    kind: WidthKind
    size: int
    part: Slice

    @property
    def module(self) -> str:
        """Path of the module of the weight."""
        return parent_path(self.part.tensor)

    @property
    def per_unit(self) -> int:
        """Entries of a unit, each predicted separately."""
        return entries_per_unit(self.kind, self.part)


def readers_of(groups: Iterable[Group]) -> list[Reader]:
    """List the weights that read groups."""
    return [Reader(g.name, g.kind, g.size, part) for g in groups for part in g.slices if not part.makes]


def fit_compensation(
    model: nn.Module, edits: Sequence[Narrow], batches: Sequence[ModelInputs]
) -> list[dict[str, Tensor]]:
    """Return for each edit the fitted predictions `(gone, kept + 1)`, by the path of the reading tensor.

    Args:
        model: Network before the first edit; bit-identical afterwards.
        edits: Edits in order; tensors are named as after the earlier edits.
        batches: Calibration inputs.
    """
    readers = [reader for own in readers_of_edits(edits) for reader in own]
    return predictions(edits, moments_of(model, readers, batches))


def fitted_tensors(model: nn.Module, edits: Sequence[Narrow], batches: Sequence[ModelInputs]) -> dict[str, Tensor]:
    """Return the tensors named in the edits, fitted to a model; see `fit_compensation`."""
    found = fit_compensation(model, edits, batches)
    return {
        key: values[key.partition(".")[2]] for edit, values in zip(edits, found, strict=True) for key in edit.tensors
    }


def moments_of(model: nn.Module, readers: Sequence[Reader], batches: Sequence[ModelInputs]) -> dict[Reader, Moments]:
    """Return the moments of the readers' inputs, from one pass; readers that cannot be refitted are left out.

    Args:
        model: Dense network, unwrapped; in evaluation mode meanwhile.
        readers: Weights that read a narrowed group.
        batches: Calibration inputs, on the model's device.
    """
    tied = _tied(model)
    readers = [reader for reader in readers if _can_take_over(model, reader, tied)]
    moments: dict[Reader, Moments] = {}
    shown = progress("measuring what weights read", len(batches))
    around = {parent_path(reader.module) for reader in readers}  # attentions whose readers are never called
    free = with_free_heads(model, (path for path in attentions_in(model) if path in around))
    watched = _collected(model, readers, moments)
    with plain_evaluation(model), free, watched, shown as advance:
        for inputs in batches if readers else ():  # experts have none
            call(model, inputs)
            advance()
    return moments


def predictions(edits: Sequence[Narrow], moments: Mapping[Reader, Moments]) -> list[dict[str, Tensor]]:
    """Return for each edit the predictions of its readers, given all moments; see `fit_compensation`."""
    return [
        {r.part.tensor: _prediction(edit, r, moments[r]) for r in own if r in moments}
        for edit, own in zip(edits, readers_of_edits(edits), strict=True)
    ]


def _prediction(edit: Narrow, reader: Reader, seen: Moments) -> Tensor:
    gone, kept = (entry_indices(units, reader.per_unit) for units in (edit.gone, edit.keep))
    return seen.predict(gone, kept).float()


def with_compensation(
    edits: Sequence[Edit], found: Sequence[Mapping[str, Tensor]]
) -> tuple[list[Edit], dict[str, Tensor]]:
    """Return the edits with the names of their tensors in narrowing edits, and the tensors by name.

    Args:
        edits: Edits in order, of any kinds.
        found: Tensors of the narrowing edits; see `fit_compensation`.
    """
    done, tensors, left = list[Edit](), dict[str, Tensor](), iter(found)
    for number, edit in enumerate(edits):
        if isinstance(edit, Narrow):
            named = {f"e{number}.{path}": value for path, value in next(left).items()}
            tensors |= named
            edit = edit.model_copy(update={"tensors": tuple(named)})
        done.append(edit)
    return done, tensors


def readers_of_edits(edits: Sequence[Narrow]) -> list[list[Reader]]:
    """List the weights that read the narrowed group of each edit, with offsets of before the first edit."""
    gone: dict[tuple[str, int], list[int]] = {}
    found = []
    for edit in edits:
        before = [_moved_back(part, gone.get((part.tensor, part.dim), [])) for part in edit.group]
        found.append([Reader(edit.unit, edit.kind, edit.of, part) for part in before if not part.makes])
        for part in before:
            indices = part.indices(torch.tensor(edit.gone, dtype=torch.long))
            gone.setdefault((part.tensor, part.dim), []).extend(indices.tolist())
    return found


def _moved_back(part: Slice, gone: Sequence[int]) -> Slice:
    offsets = list(part.offsets)
    for index in sorted(gone):
        offsets = [offset + (index <= offset) for offset in offsets]
    return part.model_copy(update={"offsets": tuple(offsets)})


def _tied(model: nn.Module) -> set[int]:
    """Return the identities of parameters shared by several modules."""
    held = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    return {key for key, count in held.items() if count > 1}


def _can_take_over(model: nn.Module, reader: Reader, tied: Collection[int]) -> bool:
    part = reader.part
    try:
        module = get_module(model, reader.module)
    except (AttributeError, ValueError):  # a shortcut not rewritten yet
        return False
    plain = isinstance(module, nn.Linear) or (
        isinstance(module, _ConvNd) and module.groups == 1 and not module.transposed
    )
    alone = part.dim == 1 and len(part.offsets) == 1 and part.tensor.rpartition(".")[2] == "weight"
    own = id(module._parameters.get("weight")) not in tied
    return plain and alone and own and reader.size * reader.per_unit <= LARGEST


@contextmanager
def _collected(model: nn.Module, readers: Sequence[Reader], moments: dict[Reader, Moments]) -> Iterator[None]:
    def watch(reader: Reader) -> Any:
        part = reader.part

        def see(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen: Tensor = (args[0] if args else kwargs["input"]).detach()
            if isinstance(module, _ConvNd):
                seen = seen.movedim(1, -1)
            read = seen.narrow(-1, part.offsets[0], reader.size * part.span)
            rows = torch.unflatten(read, -1, (reader.size * reader.per_unit, -1)).transpose(-1, -2)
            moments.setdefault(reader, Moments()).add(rows.flatten(0, -2))

        return get_module(model, reader.module).register_forward_pre_hook(see, with_kwargs=True)

    handles = [watch(reader) for reader in readers]
    with removed_after(*handles):
        yield
