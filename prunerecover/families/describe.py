"""Recognise the family of a model from its class names, without importing timm or transformers."""

from __future__ import annotations

from torch import nn

from prunerecover.families import timm_vit, transformers_layers
from prunerecover.families.layout import Layout

SUPPORTED = (*timm_vit.SUPPORTED, *transformers_layers.SUPPORTED)


def describe(model: nn.Module) -> Layout:
    """Describe the blocks of a supported model, as it is now.

    Raises:
        ValueError: If the model is of no supported family; the message lists them.
    """
    for reader in (timm_vit.read, transformers_layers.read):
        layout = reader(model)
        if layout is not None:
            return layout
    raise ValueError(
        f"Expected a model of a supported family ({', '.join(SUPPORTED)}), but got {type(model).__name__}, in which no "
        "prunable unit was found. If the network is inside another module, pass that network (callbacks: `target=`)."
    )


def is_supported(model: nn.Module) -> bool:
    """Whether `describe` knows the model."""
    try:
        describe(model)
    except ValueError:
        return False
    return True
