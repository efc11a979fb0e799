"""Update of a transformers Trainer's state after a change of the model."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import EarlyStoppingCallback


def follow(trainer: Any) -> None:
    """Give DDP a reducer for the present parameters; compiled code is dropped.

    The Trainer's loop holds the wrapper itself, so the wrapper stays the same object.

    Args:
        trainer: Trainer between steps.
    """
    wrapped = trainer.model_wrapped
    while hasattr(wrapped, "_orig_mod"):
        wrapped = wrapped._orig_mod
    if isinstance(wrapped, DistributedDataParallel):
        _make_anew(wrapped, getattr(trainer.accelerator, "ddp_handler", None))
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def _make_anew(wrapped: Any, handler: Any) -> None:
    kept = (
        "device_ids",
        "output_device",
        "dim",
        "broadcast_buffers",
        "process_group",
        "find_unused_parameters",
        "gradient_as_bucket_view",
        "static_graph",
        "mixed_precision",
    )
    settings = {name: getattr(wrapped, name) for name in kept}
    if not getattr(wrapped, "bucket_bytes_cap_default", True):
        settings["bucket_cap_mb"] = wrapped.bucket_bytes_cap / 2**20
    del wrapped.reducer  # the reducer's hooks wait for gradients of removed parameters
    with warnings.catch_warnings():  # about names renamed in newer versions of torch
        warnings.simplefilter("ignore", FutureWarning)
        wrapped.__init__(wrapped.module, **settings)
    if handler is not None:
        handler.register_comm_hook(wrapped)


def forget_best(trainer: Any) -> None:
    """Reset "best" and the patience of early stopping: scores from before a surgery belong to another model.

    Args:
        trainer: Trainer between steps.
    """
    trainer.state.best_metric = trainer.state.best_model_checkpoint = trainer.state.best_global_step = None
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, EarlyStoppingCallback):
            callback.early_stopping_patience_counter = 0
