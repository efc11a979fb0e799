"""Steps of the boundary benchmarks' methods on any ViT of timm: named units, and widths by torch-pruning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch_pruning as tp
from torch import nn

from prunerecover import Plan, find_units, plan_depth
from prunerecover.boundary.feasible import TYPES
from prunerecover.importance.measuring.losses import Loss


def plan_named(network: nn.Module, names: Sequence[str], replace: str, batches: Sequence[Any]) -> Plan:
    """Plan exactly the named attentions and activations.

    Args:
        network: Dense.
        names: Names of the units.
        replace: Replacement of the units; see `plan_depth`.
        batches: Calibration batches.
    """
    others = [unit.name for unit in find_units(network, kinds=TYPES) if unit.name not in names]
    counts = {kind: sum(name.endswith(end) for name in names) for kind, end in zip(TYPES, ("attn", "act"), strict=True)}
    remove = {kind: n for kind, n in counts.items() if n}
    how = {"importance": "random", "replace": replace}  # nothing is left to choose
    return plan_depth(network, remove=remove, batches=batches, ignore=others, **how)


def isomorphic(network: Any, ratio: float, batches: Sequence[Any], loss: Loss) -> nn.Module:
    """Prune widths with torch-pruning: a share of the channels, by Taylor importance among layers of equal shape.

    Args:
        network: Dense; pruned in place.
        ratio: Share of the channels.
        batches: Labelled batches for gradients, on the network's device.
        loss: Loss of a batch.
    """
    fused = [block.attn.fused_attn for block in network.blocks]
    for block in network.blocks:
        block.attn.fused_attn = False  # the pruner follows the operations
    heads = {block.attn.qkv: block.attn.num_heads for block in network.blocks}
    pruner = tp.pruner.BasePruner(
        network,
        batches[0][0][:1],
        importance=tp.importance.GroupTaylorImportance(),
        global_pruning=True,
        isomorphic=True,
        pruning_ratio=ratio,
        num_heads=heads,
        prune_num_heads=False,
        prune_head_dims=True,
        ignored_layers=[network.head],
        round_to=1,
    )
    network.zero_grad()
    for batch in batches:
        loss(network, batch).backward()
    pruner.step()
    for block, was in zip(network.blocks, fused, strict=True):
        block.attn.num_heads = pruner.num_heads[block.attn.qkv]
        block.attn.head_dim = block.attn.qkv.out_features // (3 * block.attn.num_heads)
        block.attn.attn_dim = block.attn.qkv.out_features // 3
        block.attn.fused_attn = was
        block.attn.scale = block.attn.head_dim**-0.5
    network.zero_grad()
    return network.eval()  # type: ignore[no-any-return]


def least_ratio(removed: Callable[[float], float], wanted: float, steps: int = 6) -> float:
    """Return the least ratio whose removed share of the cost reaches `wanted`, by `steps` bisections of 0 to 0.9."""
    low, high = 0.0, 0.9
    for _ in range(steps):
        ratio = (low + high) / 2
        low, high = (low, ratio) if removed(ratio) >= wanted else (ratio, high)
    return high
