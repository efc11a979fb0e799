"""Layers to reconstruct, in order, with the indices of kept outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.calibration.moments import LARGEST
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.copies import deep_copy
from prunerecover.model.hooks import counting
from prunerecover.plan.edits import Config, Narrow, Remove
from prunerecover.plan.plan import Plan
from prunerecover.recovery.batchnorm import batchnorms
from prunerecover.surgery.apply_edits import apply_edits


def reference_of(dense: nn.Module, plan: Plan) -> nn.Module:
    """Return the dense network with the paths of the pruned network.

    Blocks behind a removed block move up, so with removed blocks the reference is a copy without them.
    """
    blocks = [edit for edit in plan.edits if isinstance(edit, Remove) and edit.kind == "block"]
    if not blocks:
        return dense
    copied = deep_copy(dense)
    apply_edits(copied, [edit for edit in plan.edits if edit in blocks or isinstance(edit, Config)])
    return copied


def kept_rows(dense: nn.Module, plan: Plan) -> dict[str, Tensor]:
    """Return the kept outputs of each narrowed layer or BatchNorm, by path, as ascending indices of the dense outputs.

    Raises:
        ValueError: If the plan narrows more outputs than a layer has.
    """
    kept: dict[str, Tensor] = {}
    layers: dict[str, Any] = {path: module for path, module in dense.named_modules() if is_plain(module)}
    layers |= {path: norm for path, norm in batchnorms(dense).items() if norm.affine}
    for edit in plan.edits:
        for part in edit.group if isinstance(edit, Narrow) else ():
            path, _, name = part.tensor.rpartition(".")
            if part.dim != 0 or name != "weight" or not isinstance(edit, Narrow) or path not in layers:
                continue
            left = kept.get(path, torch.arange(len(layers[path].weight)))
            gone = part.indices(torch.tensor(edit.gone, dtype=torch.long))
            if len(gone) and int(gone.max()) >= len(left):
                raise ValueError(
                    f"Expected a dense network that the plan has not narrowed, but '{path}' has {len(left)} outputs, "
                    f"and output {int(gone.max())} goes. Copy the network before apply_plan, and pass both."
                )
            stays = torch.ones(len(left), dtype=torch.bool)
            stays[gone] = False
            kept[path] = left[stays]
    return kept


def of_other_outputs(plan: Plan) -> set[str]:
    """Return paths of the layers that make smaller heads: the outputs are no subset of the dense outputs."""
    narrowed = (edit for edit in plan.edits if isinstance(edit, Narrow) and edit.kind == "head_dim")
    return {part.tensor.rpartition(".")[0] for edit in narrowed for part in edit.group if part.makes}


def is_plain(layer: Any) -> bool:
    """Whether a module is a linear layer or a convolution fit for plain least squares."""
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) is nn.Linear


def calls_of(
    network: nn.Module, dense: nn.Module, rows: Mapping[str, Tensor], inputs: ModelInputs, *, all_layers: bool = False
) -> dict[str, int]:
    """Return the layers to fit, in the order of their first call, with the number of calls in a pass.

    Layers before the first change compute the same as before and are left out, unless `all_layers`. The last layer is
    left out, and so is a layer merged with the next, where an identity stands behind.

    Args:
        network: Pruned network.
        dense: Network from before, with the same paths.
        rows: Kept outputs of narrowed layers, by path, from `kept_rows`.
        inputs: Batch on the device of the network, for one forward pass.
        all_layers: Whether earlier layers may have changed, too.
    """
    holders = Counter(id(p) for module in network.modules() for p in module._parameters.values())
    (modules, now), (before, then) = (_called(model, inputs) for model in (network, dense))
    paths = list(now)
    same = (
        path == old and path not in rows and modules[path].weight.shape == before[old].weight.shape
        for path, old in zip(now, then, strict=False)
    )
    submodules = dict(network.named_modules())
    grown = {path for path, behind in pairwise(then) if type(submodules.get(behind)) is nn.Identity}
    first = 0 if all_layers else next((number for number, alike in enumerate(same) if not alike), len(paths))
    return {
        path: now[path]
        for path in paths[first:-1]
        if now[path] == then[path] and path not in grown and _can_be_fitted(modules[path], holders)
    }


def _called(network: nn.Module, inputs: ModelInputs) -> tuple[dict[str, Any], Counter[str]]:
    """Return the plain layers, and the number of calls in a pass, in the order of the first call."""
    plain: dict[str, Any] = {path: module for path, module in network.named_modules() if is_plain(module)}
    with counting(plain) as calls:
        call(network, inputs)
    return plain, calls


def _can_be_fitted(layer: Any, holders: Mapping[int, int]) -> bool:
    weight = layer._parameters.get("weight")
    return weight is not None and holders[id(weight)] == 1 and max(weight[0].numel(), len(weight)) <= LARGEST


def check_between(network: nn.Module, dense: nn.Module, rows: Mapping[str, Tensor], calls: Mapping[str, int]) -> None:
    """Raise ValueError if a plan with the kept outputs `rows` does not lead from `dense` to `network`.

    Args:
        network: Pruned network.
        dense: Network from before, with the same paths.
        rows: Kept outputs of narrowed layers, by path, from `kept_rows`.
        calls: Layers to compare, from `calls_of`.
    """
    for path in calls:
        has, had = (len(model.get_parameter(f"{path}.weight")) for model in (network, dense))
        if has != len(rows.get(path, range(had))):
            raise ValueError(
                f"Expected the network after the plan and the dense network before it, but '{path}' has {has} outputs "
                f"in the first and {had} in the second. Copy the network before apply_plan, and pass both."
            )
