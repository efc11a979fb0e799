"""Merging of adjacent linear maps: two linears without an activation between become one (d x 4d x d becomes d x d).

The affine part of the norm and LayerScale fold in, and blocks without both branches are removed. Exact in evaluation
mode; dropout between the linears is lost.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from prunerecover.families.describe import describe_blocks, describe_stacks, is_supported, layout_of
from prunerecover.families.layout import FeedForward
from prunerecover.model.hooks import users_hooks
from prunerecover.model.linears import has_affine
from prunerecover.model.paths import get_module, unwrap
from prunerecover.model.replacements import Nothing, PassThrough, Replacement
from prunerecover.plan.edits import Config, Edit, Merge, Remove
from prunerecover.plan.plan import Plan
from prunerecover.runtimes.subnormals import flush_subnormals
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.optimizer_update import update_optimizer
from prunerecover.surgery.provenance import plan_for
from prunerecover.surgery.transformers_depth import config_edits


def merge(model: nn.Module, optimizer: Optimizer | None = None) -> Plan:
    """Merge every linearised feed-forward and every fitted map in place, where possible.

    Subnormal weights of the network become zero. Forward and backward hooks stay at the same paths. A warning names
    the hooks of merged modules and of removed blocks.

    Args:
        model: Pruned network, wrapped or not.
        optimizer: Optimizer of its parameters, which goes on with the merged ones; see `update_optimizer`.

    Returns:
        Plan of the edits made; without edits if no merge was possible.

    Raises:
        TypeError: If the model is a LightningModule around a supported network.
        ValueError: If a linear computes weights (masks, weight norm, parametrizations); the model is unchanged then.
    """
    model = unwrap(model)
    if hasattr(model, "load_from_checkpoint") and not is_supported(model) and any(map(is_supported, model.children())):
        raise TypeError(
            f"Expected a network, but got the LightningModule {type(model).__name__}, in which no blocks are known. "
            "Pass the network that it holds."
        )
    plan = plan_for(model, merge_edits(model), method="merge")
    hooked = _hooked(model, plan.edits)
    applied = apply_edits(model, plan.edits)
    flush_subnormals(model)
    if optimizer is not None:
        update_optimizer(optimizer, applied)
    if hooked:
        warnings.warn(
            f"Hooks at {', '.join(hooked)} see other values from now on, or are not called: linears were merged there, "
            "or the block is gone. Register them anew where you need them.",
            stacklevel=2,
        )
    return plan


def _hooked(model: nn.Module, edits: Sequence[Edit]) -> list[str]:
    """Return the paths of modules with user hooks among the merged or removed, as named before the merge."""
    changed = {path for e in edits if isinstance(e, Merge) for path in (e.into, *e.from_, e.norm, e.scale)}
    gone = tuple(f"{edit.unit}." for edit in edits if isinstance(edit, Remove))
    return [
        path
        for path, module in model.named_modules()
        if users_hooks(module) and (path in changed or f"{path}.".startswith(gone))
    ]


def merge_edits(model: nn.Module) -> list[Edit]:
    """Return the edits of `merge` without changing the model; empty where depth cannot be pruned."""
    layout = layout_of(model)
    if layout is None:
        return []
    edits = [edit for block in layout.blocks for edit in _merge_feed_forward(model, block.feed_forward)]
    empty = [i for i, block in enumerate(layout.blocks) if not block.stays and _is_empty(get_module(model, block.path))]
    one_stays = empty[1:] if len(empty) == len(layout.blocks) else empty
    return [*edits, *block_removals(model, one_stays)]


def _merge_feed_forward(model: nn.Module, forward: FeedForward | None) -> list[Edit]:
    if forward is None or forward.state == "nonlinear":
        return []
    norm = forward.norm if forward.norm and has_affine(get_module(model, forward.norm)) else None
    scale = forward.scale
    if forward.state == "merged":
        return [Merge(into=forward.first, from_=(forward.first,), norm=norm, scale=scale)] if norm or scale else []
    sources = (forward.first, forward.activation, *forward.between, forward.second)
    return [Merge(into=forward.first, from_=sources, norm=norm, scale=scale)]


def _is_empty(block: nn.Module) -> bool:
    """Whether a block returns the input: both branches add zero, and norms are left only as identities."""
    found = {path: m for path, m in block.named_modules() if isinstance(m, Replacement)}
    norms = [path for path, m in found.items() if isinstance(m, PassThrough) and "." not in path]
    zeros = [path for path, m in found.items() if isinstance(m, Nothing) and ("." not in path or not norms)]
    emptied = len(zeros) == 2 and len(norms) + 2 == len(found)
    return emptied and not any(True for _ in block.parameters())


def block_removals(model: nn.Module, indices: Sequence[int]) -> list[Edit]:
    """Return the edits of `removals_of` for block numbers of a model with a single list of blocks."""
    container = describe_blocks(model).container
    return removals_of(model, [f"{container}.{index}" for index in indices])


def removals_of(model: nn.Module, names: Sequence[str]) -> list[Edit]:
    """Return the edits that remove whole blocks, the last first, and keep a transformers config standard.

    Args:
        model: Network without wrappers; not changed.
        names: Paths of the blocks.

    Raises:
        ValueError: If no block of a list would stay.
    """
    removals: list[Edit] = []
    config: dict[str, Any] = {}
    for stack in describe_stacks(model):
        depth = len(stack.blocks)
        gone = {int(name.rpartition(".")[2]) for name in names if name.rpartition(".")[0] == stack.container}
        if len(gone) >= depth:
            raise ValueError(
                f"Expected at least one block to stay, but all {depth} are to be removed. Lower the number."
            )
        removals += [Remove(unit=f"{stack.container}.{i}", kind="block") for i in sorted(gone, reverse=True)]
        config |= config_edits(model, [i for i in range(depth) if i not in gone], stack) if gone else {}
    return [*removals, Config(set=config)] if config else removals
