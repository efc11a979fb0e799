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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from prunerecover.calibration.moments import LARGEST, Moments
from prunerecover.display.progress import progress
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.evaluation import plain_evaluation
from prunerecover.model.hooks import first_tensor, removed_after
from prunerecover.model.narrow.freeing import attentions_in, with_free_heads
from prunerecover.model.paths import get_module, parent_path
from prunerecover.plan.edits import Edit, Narrow
from prunerecover.plan.groups import Group, Slice
from prunerecover.plan.kinds import WidthKind
from prunerecover.surgery.compensation import entries_per_unit, entry_indices

Key = TypeVar("Key")
Rows = Callable[[Any, Tensor, Tensor], Tensor]  # module, input, output


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
    around = {parent_path(reader.module) for reader in readers}  # attentions whose readers are never called
    watched = {reader: (reader.module, _rows_of(reader)) for reader in readers}
    with with_free_heads(model, (path for path in attentions_in(model) if path in around)):
        return collected(model, watched, batches, "measuring what weights read")


def predictions(edits: Sequence[Narrow], moments: Mapping[Reader, Moments]) -> list[dict[str, Tensor]]:
    """Return for each edit the predictions of its readers, given all moments; see `fit_compensation`."""
    found = []
    for edit, own in zip(edits, readers_of_edits(edits), strict=True):
        values = dict[str, Tensor]()
        for reader in (one for one in own if one in moments):
            gone, kept = (entry_indices(units, reader.per_unit) for units in (edit.gone, edit.keep))
            values[reader.part.tensor] = moments[reader].predict(gone, kept).float()
        found.append(values)
    return found


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


def collected(
    model: nn.Module, watched: Mapping[Key, tuple[str, Rows]], batches: Sequence[ModelInputs], what: str
) -> dict[Key, Moments]:
    """Return moments of rows seen at modules in one pass over the batches, by key; uncalled modules have none.

    Args:
        model: Network; in evaluation mode meanwhile.
        watched: Path of a module, and function from the module, its input and its output to rows, by key.
        batches: Calibration inputs, on the model's device.
        what: Words for the progress line.
    """
    found: dict[Key, Moments] = {}

    def watch(key: Key, path: str, rows: Rows) -> Any:
        def see(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            found.setdefault(key, Moments()).add(rows(module, first_tensor(args, kwargs).detach(), output))

        return get_module(model, path).register_forward_hook(see, with_kwargs=True)

    shown = progress(what, len(batches) if watched else 0)
    handles = (watch(key, path, rows) for key, (path, rows) in watched.items())
    with plain_evaluation(model), removed_after(*handles), shown as advance:
        for inputs in batches if watched else ():
            call(model, inputs)
            advance()
    return found


def _rows_of(reader: Reader) -> Rows:
    """Return the function from a reader's input to rows of the group's entries."""

    def rows(module: nn.Module, seen: Tensor, _: Tensor) -> Tensor:
        seen = seen.movedim(1, -1) if isinstance(module, _ConvNd) else seen
        read = seen.narrow(-1, reader.part.offsets[0], reader.size * reader.part.span)
        return torch.unflatten(read, -1, (reader.size * reader.per_unit, -1)).transpose(-1, -2).flatten(0, -2)

    return rows
