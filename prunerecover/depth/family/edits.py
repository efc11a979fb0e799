"""Edits that take units of a supported family out, and the cost that goes with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor, nn

from prunerecover.calibration.candidates import Candidate
from prunerecover.families.describe import describe
from prunerecover.plan.edits import Edit, Fold, Remove, Replace
from prunerecover.plan.units import Unit
from prunerecover.surgery.merging import block_removals
from prunerecover.surgery.saved_cost import DenseCost


def edits_of(model: nn.Module, chosen: Iterable[tuple[Unit, Candidate]]) -> tuple[list[Edit], dict[str, Tensor]]:
    """Turn choices into sequential edits and their tensors; blocks go last, from the end."""
    edits: list[Edit] = []
    tensors: dict[str, Tensor] = {}
    blocks = []
    for unit, candidate in chosen:
        edit = candidate.edit
        if unit.kind == "block":
            blocks.append(describe(model).block_of(unit.name))
            if candidate.fold is None:
                continue
            edit = candidate.fold
        if isinstance(edit, Replace | Fold) and candidate.values:
            keyed = {f"e{len(edits)}.{name}": value for name, value in candidate.values.items()}
            tensors |= {key: value.detach().float().cpu() for key, value in keyed.items()}
            edit = edit.model_copy(update={"tensors": tuple(keyed)})
        edits.append(edit)
    return [*edits, *block_removals(model, blocks)], tensors


def saving_if_left(dense: DenseCost, left: Mapping[str, str]) -> Callable[[Sequence[Unit]], float]:
    """Return a function that measures the share of the cost that goes with some units.

    Args:
        dense: What the model costs; nothing is fitted.
        left: What units leave, by name or by kind; those that are not there leave nothing.
    """
    bare = {"activation": "identity"}

    def candidate(unit: Unit) -> Candidate:
        leaves = left.get(unit.name, left.get(unit.kind, bare.get(unit.kind, "zero")))
        if unit.kind == "block" or leaves == "zero":
            return Candidate(Remove(unit=unit.name, kind=unit.kind))  # type: ignore[arg-type]
        return Candidate(Replace(unit=unit.name, kind=unit.kind, leaves=leaves))  # type: ignore[arg-type]

    def share(units: Sequence[Unit]) -> float:
        edits, _ = edits_of(dense.model, ((u, candidate(u)) for u in units))
        return dense.removed_share(edits)

    return share
