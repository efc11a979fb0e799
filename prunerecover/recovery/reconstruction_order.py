"""Layers to reconstruct, in order, with the outputs that are left of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.calibration.moments import LARGEST
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Narrow
from prunerecover.plan.plan import Plan


def kept_rows(dense: nn.Module, plan: Plan) -> dict[str, Tensor]:
    """Return which outputs each narrowed layer keeps of those it had: by its path, ascending indices."""
    kept: dict[str, Tensor] = {}
    for edit in plan.edits:
        for part in edit.group if isinstance(edit, Narrow) else ():
            path, _, name = part.tensor.rpartition(".")
            if part.dim != 0 or name != "weight" or not isinstance(edit, Narrow):
                continue
            layer: Any = get_module(dense, path)
            if is_plain(layer):
                left = kept.get(path, torch.arange(len(layer.weight)))
                stays = torch.ones(len(left), dtype=torch.bool)
                stays[part.indices(torch.tensor(edit.gone, dtype=torch.long))] = False
                kept[path] = left[stays]
    return kept


def is_plain(layer: Any) -> bool:
    """Whether a module is a linear layer or a convolution that least squares can fit as it is."""
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) is nn.Linear


def calls_of(network: nn.Module, dense: nn.Module, rows: Mapping[str, Tensor], inputs: ModelInputs) -> dict[str, int]:
    """Return the layers that are fitted, in the order of their first call, with how often a pass calls each.

    What comes before the first narrowed layer computes what it did. The last layer stays.

    Args:
        network: The narrowed network.
        dense: The same network from before.
        rows: What `kept_rows` returned: outputs that narrowed layers keep, by path.
        inputs: One batch on the network's device, for one forward pass.
    """
    holders = Counter(id(p) for module in network.modules() for p in module._parameters.values())
    plain: dict[str, Any] = {path: module for path, module in network.named_modules() if is_plain(module)}
    order: Counter[str] = Counter()
    handles = [
        module.register_forward_hook(lambda *_, path=path: order.update([path])) for path, module in plain.items()
    ]
    try:
        call(network, inputs)
    finally:
        for handle in handles:
            handle.remove()
    paths = list(order)
    changed = [
        number
        for number, path in enumerate(paths)
        if path in rows or plain[path].weight.shape != get_module(dense, path).weight.shape
    ]
    first = changed[0] if changed else len(paths)
    return {path: order[path] for path in paths[first:-1] if _can_be_fitted(plain[path], holders)}


def _can_be_fitted(layer: Any, holders: Mapping[int, int]) -> bool:
    weight = layer._parameters.get("weight")
    return weight is not None and holders[id(weight)] == 1 and max(weight[0].numel(), len(weight)) <= LARGEST


def check_between(network: nn.Module, dense: nn.Module, rows: Mapping[str, Tensor], calls: Mapping[str, int]) -> None:
    """Raise ValueError if a plan that keeps `rows` does not lie between the two networks.

    Args:
        network: The narrowed network.
        dense: The same network from before.
        rows: What `kept_rows` returned: outputs that narrowed layers keep, by path.
        calls: What `calls_of` returned: the layers to compare.
    """
    for path in calls:
        has, had = (len(model.get_parameter(f"{path}.weight")) for model in (network, dense))
        if has != len(rows.get(path, range(had))):
            raise ValueError(
                f"Expected a network that the plan has narrowed, and a dense one that it has not, but '{path}' has "
                f"{has} outputs in the one and {had} in the other. Copy the network before apply_plan, and pass both."
            )
