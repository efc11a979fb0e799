"""A test for networks in their initial state, by normalisation layers alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

INITIAL = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}


def looks_untrained(network: nn.Module) -> bool:
    """Whether all normalisation layers have their initial values; False without normalisation layers.

    One optimizer step moves a norm's weight or bias, and one training batch moves BatchNorm's statistics.

    >>> looks_untrained(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))
    True
    >>> looks_untrained(nn.Linear(2, 3))
    False
    """
    norms = [module for module in network.modules() if "Norm" in type(module).__name__ and _state(module)]
    return bool(norms) and all(map(_is_initial, norms))


def said_of_untrained(network: nn.Module, done: str, instead: str) -> str:
    """Return a warning about an untrained network; empty if the network looks trained.

    Args:
        network: Dense network.
        done: Action with its subject: "DepthPrune prunes".
        instead: Alternative to loading weights.
    """
    if not looks_untrained(network):
        return ""
    return (
        f"{done} {type(network).__name__} as it was initialised: no weights were loaded and nothing was trained, so "
        "there is no quality to keep. Load weights first (pretrained=True, or the network's own checkpoint), or "
        f"{instead}"
    )


def _state(module: nn.Module) -> dict[str, Tensor]:
    found = {name: getattr(module, name, None) for name in INITIAL}
    return {name: value for name, value in found.items() if isinstance(value, Tensor) and not value.is_meta}


def _is_initial(module: nn.Module) -> bool:
    return all(torch.all(value == INITIAL[name]).item() for name, value in _state(module).items())
