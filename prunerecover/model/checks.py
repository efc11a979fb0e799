"""Checks of a model before anything is planned for it: what no surgery could cut is refused by name.

Not covered: what a forward pass does with its values, and weights of other libraries' quantisation than PyTorch's own
and bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from prunerecover.model.batches import ModelInputs, call

QUANTISED = ("torch.ao.nn.quantized", "torch.nn.quantized", "torch.ao.nn.intrinsic.quantized", "bitsandbytes")


def check_call(model: nn.Module, inputs: ModelInputs, argument: str) -> None:
    """Raise ValueError if the model does not take its inputs; what failed is the cause.

    Args:
        model: Unwrapped, in evaluation mode.
        inputs: On its device.
        argument: That gave them, for the message.
    """
    with called_with(model, argument):
        call(model, inputs)


@contextmanager
def called_with(model: nn.Module, argument: str) -> Iterator[None]:
    """Explain what a forward pass of the model raises inside a `with` block as ValueError; no memory stays that.

    Args:
        model: That is called.
        argument: That gave its inputs, for the message.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise ValueError(
            f"Expected {argument} that {type(model).__name__} can be called with, but its forward pass raised "
            f"{type(error).__name__}: {error}. Pass batches as your loader gives them (a tensor, a tuple whose first "
            "element is the input, or a mapping of keyword arguments), in the shape and dtype that the model takes, "
            "and give it its weights first."
        ) from error


def check_network(model: nn.Module) -> None:
    """Raise ValueError if this is a LightningModule that has no forward pass of its own.

    Args:
        model: Unwrapped.
    """
    if hasattr(model, "load_from_checkpoint") and "forward" not in type(model).__dict__:
        raise ValueError(
            f"Expected a network, but got the LightningModule {type(model).__name__}, which has no forward pass of its "
            "own. Pass the network that it holds."
        )


def check_plannable(model: nn.Module) -> None:
    """Raise ValueError unless the model has values, finite ones, in plain parameters; it is not changed.

    Args:
        model: Unwrapped.
    """
    for path, module in model.named_modules():
        _check_plain(path or type(model).__name__, module)
    empty = next((name for name, p in model.named_parameters() if p.is_meta), None)
    if empty is not None:
        raise ValueError(
            f"Expected a model with values to plan for, but '{empty}' is on the meta device. Load its weights first: "
            "model.to_empty(device=...), then load_state_dict."
        )
    wrong = next((n for n, p in model.named_parameters() if p.is_floating_point() and not _finite(p)), None)
    if wrong is not None:
        raise ValueError(
            f"Expected finite weights to plan with, but '{wrong}' holds NaN or infinite values. Load a checkpoint from "
            "before the training diverged."
        )


def check_differentiable(model: nn.Module) -> None:
    """Raise ValueError if weights were made within `torch.inference_mode`: no gradient can flow through them."""
    made_there = next((name for name, p in model.named_parameters() if p.is_inference()), None)
    if made_there is not None:
        raise ValueError(
            f"Expected weights that gradients flow through, but '{made_there}' was made within torch.inference_mode. "
            "Build or load the model outside of it; planning itself may be called within."
        )


def check_blocks_apart(model: nn.Module) -> None:
    """Raise ValueError if one module is at two places of a list of blocks: neither could be removed alone."""
    for path, container in model.named_modules():
        if not isinstance(container, nn.ModuleList | nn.Sequential):
            continue
        first: dict[nn.Module, int] = {}
        for number, block in enumerate(container):
            other = first.setdefault(block, number)
            if other != number and any(True for _ in block.parameters()):
                raise ValueError(
                    f"Expected every block to be a module of its own, but '{path}.{number}' is '{path}.{other}'. Put "
                    "copy.deepcopy of it there to remove them one by one."
                )


def _finite(parameter: nn.Parameter) -> bool:
    return bool(parameter.detach().isfinite().all())


def _check_plain(path: str, module: nn.Module) -> None:
    if type(module).__module__.startswith(QUANTISED):
        raise ValueError(
            f"Expected weights in floating point, but '{path}' is quantised ({type(module).__name__}). Prune first, "
            "and quantise what is left."
        )
    for name in module._parameters:
        stem, _, last = name.rpartition("_")
        if last == "orig" and f"{stem}_mask" in module._buffers:
            raise ValueError(
                f"Expected weights without masks, but '{path}' has one of torch.nn.utils.prune on '{stem}'. Make it "
                f"permanent first: torch.nn.utils.prune.remove(module, '{stem}')."
            )
        if last == "g" and f"{stem}_v" in module._parameters and stem not in module._parameters:
            raise ValueError(
                f"Expected weights that are parameters, but '{path}' computes '{stem}' by weight_norm. Fold it first: "
                f"torch.nn.utils.remove_weight_norm(module, '{stem}')."
            )
