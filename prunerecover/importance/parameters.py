"""Parameters of a unit."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn import Parameter

from prunerecover.model.paths import get_module
from prunerecover.plan.units import Unit


def unit_parameters(model: nn.Module, units: Sequence[Unit]) -> dict[str, list[Parameter]]:
    """Return each unit's parameters by its name; for an activation, which has none, those of the linears around it."""
    return {
        unit.name: list(dict.fromkeys(p for path in unit.targets for p in get_module(model, path).parameters()))
        for unit in units
    }
