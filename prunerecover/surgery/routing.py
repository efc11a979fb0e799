"""Constraints of expert routing: valid numbers of experts, and counts shared by configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from prunerecover.families.experts import COUNTS, expert_counts, mixtures
from prunerecover.families.transformers_layers import is_transformers_config
from prunerecover.model.paths import is_within
from prunerecover.plan.edits import Narrow


def check_routing(network: nn.Module, edit: Narrow) -> None:
    """Raise ValueError if an edit of experts leaves the router too few, or uneven numbers in the router's groups."""
    if edit.kind != "expert":
        return
    mixture = next((found for found in mixtures(network) if found.experts == edit.unit), None)
    if mixture is None or not edit.gone:
        return
    if len(edit.keep) < mixture.at_least:
        raise ValueError(
            f"Expected '{edit.unit}' to keep at least {mixture.at_least} experts, as its router picks {mixture.picks} "
            f"per token, but {len(edit.keep)} would be left. Remove fewer."
        )
    length = mixture.size // mixture.strata
    left = [sum(unit // length == stratum for unit in edit.keep) for stratum in range(mixture.strata)]
    if len(set(left)) > 1:
        raise ValueError(
            f"Expected the {mixture.strata} groups of experts among which the router of '{edit.unit}' chooses to keep "
            f"equally many, but {left} would be left. Keep the same number in each."
        )


def shared_counts(network: nn.Module) -> Mapping[tuple[str, str], int]:
    """Return the expert counts above the layers, where a single number stands for all layers.

    The counts are entries of transformers configs and attributes of modules around several layers (read by the loss
    that balances the experts). Where layers differ, no number is right, and the present value stays.

    Returns:
        Number of experts by path of the module and attribute (`config.num_experts`); only counts that change.
    """
    sizes = {mixture.block: mixture.size for mixture in mixtures(network)}
    said: dict[tuple[str, str], int] = {}
    seen: set[int] = set()
    for path, module in network.named_modules() if sizes else ():
        below = {size for block, size in sizes.items() if is_within(block, path)}
        if len(below) != 1:
            continue
        (size,) = below
        if path not in sizes:
            said |= {(path, name): size for name, value in expert_counts(vars(module)).items() if value != size}
        config = getattr(module, "config", None)
        if is_transformers_config(config) and id(config) not in seen and _all_alike(network, sizes, config):
            values = expert_counts({name: getattr(config, name, None) for name in COUNTS})
            said |= {(path, f"config.{name}"): size for name, value in values.items() if value != size}
        seen.add(id(config))
    return said


def _all_alike(network: nn.Module, sizes: Mapping[str, int], config: Any) -> bool:
    """Whether all layers under any holder of the config have the same number of experts."""
    holders = [path for path, module in network.named_modules() if getattr(module, "config", None) is config]
    return len({size for block, size in sizes.items() if any(is_within(block, path) for path in holders)}) == 1
