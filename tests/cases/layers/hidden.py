"""Naive residual streams with fewer features: removed features at zero, and norms over the kept ones."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from cases.width.oracle import Keep, rewritten, thirty_percent
from cases.width.round_trip import RoundTrip
from torch import Tensor, nn

from prunerecover.importance.measuring.unit_slices import tensor_named
from prunerecover.model.paths import get_module, parent_path, set_module
from prunerecover.width.groups.found import FoundGroups


class NormOverKept(nn.Module):
    """Norm over some entries, with zeros for the rest.

    Args:
        norm: Over the last dimension.
        kept: Indices.
    """

    def __init__(self, norm: nn.Module, kept: Tensor) -> None:
        super().__init__()
        self.kept, self.small = kept, copy.deepcopy(norm)
        for name, parameter in norm.named_parameters():
            setattr(self.small, name, nn.Parameter(parameter.detach()[kept]))
        if hasattr(norm, "normalized_shape"):
            self.small.normalized_shape = (len(kept),)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        out[..., self.kept] = self.small(x[..., self.kept])
        return out


def with_norms_over_kept(model: nn.Module, found: FoundGroups, keep: Keep) -> nn.Module:
    """Copy a model with all writers and readers of a removed feature at zero, and norms over the kept features."""
    new = rewritten(model, found)
    for group, units in keep.items():
        gone = torch.tensor([unit for unit in range(group.size) if unit not in units.tolist()])
        for part in group.slices:
            tensor = tensor_named(new, part.tensor)
            tensor.data.index_fill_(part.dim, part.indices(gone), 0)
        for part in group.slices:
            path, dense = parent_path(part.tensor), get_module(model, parent_path(part.tensor))
            if "Norm" in type(dense).__name__ and part.tensor.endswith(".weight"):
                set_module(new, path, NormOverKept(dense, part.indices(units)))
    return new


@dataclass(frozen=True, eq=False)
class HiddenRoundTrip(RoundTrip):
    """Round trip of streams, with norms over the kept features."""

    kinds: tuple[str, ...] = ("hidden",)

    def masked(self, dense: nn.Module) -> nn.Module:
        return with_norms_over_kept(dense, self.found, thirty_percent(self.found))
