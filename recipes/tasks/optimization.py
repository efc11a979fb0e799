"""Optimizer of the recipes: AdamW under a cosine schedule with linear warmup, as in DeiT (arXiv 2012.12877)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR


def parameter_groups(
    network: nn.Module, learning_rate: float, weight_decay: float, layer_decay: float | None
) -> list[dict[str, Any]]:
    """Return groups of parameters for AdamW, without weight decay on vectors.

    Args:
        network: Network to train.
        learning_rate: Learning rate of the last layer.
        weight_decay: Weight decay of parameters with two or more dimensions.
        layer_decay: Ratio of each layer's learning rate to the rate of the next layer; None: equal rates.

    Raises:
        ValueError: If `layer_decay` is not in (0, 1].
    """
    from timm.optim import param_groups_layer_decay, param_groups_weight_decay

    skip: Any = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()  # type: ignore[operator]
    if layer_decay is None:
        return param_groups_weight_decay(network, weight_decay, no_weight_decay_list=skip)  # type: ignore[no-any-return]
    if not 0 < layer_decay <= 1:
        raise ValueError(f"Expected layer_decay to be in (0, 1], but got {layer_decay}. 0.75 is usual.")
    groups = param_groups_layer_decay(network, weight_decay, no_weight_decay_list=skip, layer_decay=layer_decay)
    return [  # torch's schedules know no scale, and multiply each group's own rate
        {"params": group["params"], "weight_decay": group["weight_decay"], "lr": learning_rate * group["lr_scale"]}
        for group in groups
    ]


def cosine_with_warmup(optimizer: torch.optim.Optimizer, warmup: int, steps: int, minimum: float) -> LRScheduler:
    """Return the schedule of the learning rates, for each step.

    Args:
        optimizer: Optimizer with the rates at the end of the warmup.
        warmup: Steps of the linear warmup.
        steps: Steps in all.
        minimum: Learning rate at the end of the cosine.
    """
    cosine = CosineAnnealingLR(optimizer, T_max=max(steps - warmup, 1), eta_min=minimum)
    if warmup < 1:
        return cosine
    ramp = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
    return SequentialLR(optimizer, [ramp, cosine], milestones=[warmup])
