"""Optimizer of the recipes: AdamW under a cosine schedule with linear warmup, as in DeiT (arXiv 2012.12877)."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR


def adamw_with_cosine(
    module: pl.LightningModule,
    network: nn.Module,
    learning_rate: float,
    weight_decay: float,
    warmup_epochs: float,
    minimum: float,
    layer_decay: float | None = None,
) -> OptimizerLRSchedulerConfig:
    """Return AdamW without weight decay on vectors, and its schedule per step.

    Args:
        module: Module attached to its trainer, which knows the number of steps.
        network: Network to train.
        learning_rate: Learning rate at the end of the warmup.
        weight_decay: Weight decay of parameters with two or more dimensions.
        warmup_epochs: Length of the linear warmup; may be a fraction.
        minimum: Learning rate at the end of the cosine; no higher than the lowest learning rate of a layer.
        layer_decay: Ratio of each layer's learning rate to the rate of the next layer; None: equal rates.

    Raises:
        ValueError: If the trainer has neither `max_epochs` nor `max_steps`, or `layer_decay` is not in (0, 1].
    """
    groups = _parameter_groups(network, learning_rate, weight_decay, layer_decay)
    optimizer = torch.optim.AdamW(groups, lr=learning_rate)
    minimum = min(minimum, *(group["lr"] for group in optimizer.param_groups))
    steps = module.trainer.estimated_stepping_batches
    if not isinstance(steps, int):
        raise ValueError(
            "Expected a training run with an end, for the cosine schedule, but the trainer has none. "
            "Set max_epochs or max_steps."
        )
    epochs = max(module.trainer.max_epochs or 1, 1)
    warmup = min(round(warmup_epochs * steps / epochs), steps - 1)
    scheduler = _cosine_with_warmup(optimizer, warmup, steps, minimum)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def _parameter_groups(
    network: nn.Module, learning_rate: float, weight_decay: float, layer_decay: float | None
) -> list[dict[str, Any]]:
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


def _cosine_with_warmup(optimizer: torch.optim.Optimizer, warmup: int, steps: int, minimum: float) -> LRScheduler:
    cosine = CosineAnnealingLR(optimizer, T_max=max(steps - warmup, 1), eta_min=minimum)
    if warmup < 1:
        return cosine
    ramp = LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
    return SequentialLR(optimizer, [ramp, cosine], milestones=[warmup])
