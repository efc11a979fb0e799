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


def saving_if_left(
    dense: DenseCost, left: Mapping[str, str], wanted: float | None = None
) -> Callable[[Sequence[Unit]], float]:
    """Return a function that measures the share of the cost that goes with some units.

    Args:
        dense: What the model costs; nothing is fitted.
        left: What units leave, by name or by kind; those that are not there leave nothing.
        wanted: See `DenseCost.removed_share`.
    """

    def candidate(unit: Unit) -> Candidate:
        leaves = cost_left(unit, left)
        if leaves == "zero":
            return Candidate(Remove(unit=unit.name, kind=unit.kind))  # type: ignore[arg-type]
        return Candidate(Replace(unit=unit.name, kind=unit.kind, leaves=leaves))  # type: ignore[arg-type]

    def share(units: Sequence[Unit]) -> float:
        edits, _ = edits_of(dense.model, ((u, candidate(u)) for u in units))
        return dense.removed_share(edits, wanted=wanted)

    return share


def cost_left(unit: Unit, left: Mapping[str, str]) -> str:
    """Return what a unit leaves that costs something, else "zero", or "identity" for an activation.

    Args:
        unit: A block leaves nothing, or a map that is folded elsewhere.
        left: See `saving_if_left`.
    """
    bare = "identity" if unit.kind == "activation" else "zero"
    return bare if unit.kind == "block" else left.get(unit.name, left.get(unit.kind, bare))
