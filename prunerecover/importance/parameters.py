"""Parameters of a unit."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn import Parameter

from prunerecover.families.describe import describe
from prunerecover.model.paths import get_module
from prunerecover.plan.units import Unit


def unit_parameters(model: nn.Module, units: Sequence[Unit]) -> dict[str, list[Parameter]]:
    """Return each unit's parameters by its name; for an activation, which has none, those of the linears around it."""
    layout = describe(model)
    found: dict[str, list[Parameter]] = {}
    for unit in units:
        forward = layout.feed_forward(unit.name) if unit.kind == "activation" else None
        paths = unit.targets if forward is None else (forward.first, forward.second)
        found[unit.name] = list(dict.fromkeys(p for path in paths for p in get_module(model, path).parameters()))
    return found
