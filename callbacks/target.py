"""Find the network to prune inside a LightningModule that knows nothing of us."""

from __future__ import annotations

import lightning.pytorch as pl
from torch import nn

from prunerecover.families import SUPPORTED
from prunerecover.families.describe import is_supported
from prunerecover.structure import get_module


def find_target(module: pl.LightningModule, target: str | None) -> str:
    """Return the path of the network: `target` if given, else the single supported one.

    Raises:
        ValueError: If there is no supported network, or several and `target` does not say which.
    """
    candidates = _candidates(module)
    if target is not None:
        if not is_supported(get_module(module, target)):
            raise ValueError(
                f"Expected a supported network ({', '.join(SUPPORTED)}) at target='{target}', but got "
                f"{type(get_module(module, target)).__name__}. Supported in this module: {candidates or 'none'}."
            )
        return target
    if not candidates:
        raise ValueError(
            f"Expected a supported network ({', '.join(SUPPORTED)}) inside {type(module).__name__}, but found none. "
            "Is it built later than configure_model?"
        )
    if len(candidates) > 1:
        raise ValueError(
            f"Expected one supported network inside {type(module).__name__}, but found {len(candidates)}: "
            f"{', '.join(candidates)}. Say which with target='{candidates[0]}'."
        )
    return candidates[0]


def _candidates(module: nn.Module, path: str = "") -> list[str]:
    if is_supported(module):
        return [path]
    return [
        found
        for name, child in module.named_children()
        for found in _candidates(child, f"{path}.{name}" if path else name)
    ]
