"""Construction of models without memory or initial values for parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

INITIALISING = frozenset({"uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_", "fill_", "zero_"})


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """Build a model with parameters on the meta device and buffers in memory; the random state stays unchanged."""
    from accelerate import init_empty_weights  # type: ignore[import-untyped]

    with torch.random.fork_rng(devices=[]), init_empty_weights(include_buffers=False), _NoInitialisation():
        model = make()
    tie = getattr(model, "tie_weights", None)
    if callable(tie):  # the move to meta separates tied parameters
        tie()
    return model


def emptied(make: Callable[[], nn.Module]) -> nn.Module:
    """Build a model that runs during construction, and move the parameters to the meta device afterwards."""
    with torch.random.fork_rng(devices=[]):
        model = make()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            module.register_parameter(name, nn.Parameter(parameter.to("meta"), parameter.requires_grad))
    return model


def on_meta_if_possible(make: Callable[[], nn.Module]) -> nn.Module:
    """Build a model by `on_meta`, or by `emptied` if the model runs during construction, such as an SSDLite."""
    try:
        return on_meta(make)
    except RuntimeError:  # "Tensor on device cpu is not on the expected device meta"
        return emptied(make)


class _NoInitialisation(TorchFunctionMode):
    """Skip of initial values for parameters on the meta device, as they would be lost and take most of the time."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the tensor unchanged for an initialisation on meta; run any other function."""
        written = args[0] if args else (kwargs or {}).get("tensor")
        if getattr(func, "__name__", "") in INITIALISING and isinstance(written, Tensor) and written.is_meta:
            return written
        return func(*args, **(kwargs or {}))
