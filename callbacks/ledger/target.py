"""Search for the network to prune inside an unmodified LightningModule."""

from __future__ import annotations

import lightning.pytorch as pl
from torch import nn

from prunerecover.families.describe import is_supported, supported_families
from prunerecover.model.paths import get_module, unwrap


def find_target(module: pl.LightningModule, target: str | None) -> str:
    """Return the path of the network: `target` if given, else the single network of a supported family.

    Raises:
        ValueError: If no network is supported, or several are and `target` is None.
    """
    candidates = list(_candidates(module).values())
    if target is not None:
        network = unwrap(_at(module, target))
        if not is_supported(network):
            raise ValueError(
                f"Expected a supported network ({', '.join(supported_families())}) at target='{target}', but got "
                f"{type(network).__name__}. Supported in this module: {', '.join(candidates) or 'none'}."
            )
        return target
    if not candidates:
        raise ValueError(
            f"Expected a supported network ({', '.join(supported_families())}) inside {type(module).__name__}, but "
            "found none. Is it built later than configure_model? Networks without such blocks, CNNs among them, are "
            "narrowed by WidthPrune(Budget(macs=0.3))."
        )
    if len(candidates) > 1:
        raise ValueError(
            f"Expected one supported network inside {type(module).__name__}, but found {len(candidates)}: "
            f"{', '.join(candidates)}. Say which with target='{candidates[0]}'."
        )
    return candidates[0]


def find_network(module: pl.LightningModule, target: str | None) -> str:
    """Return the path of any network: `target`, else the single supported network, else the only child with weights.

    The empty path is the module itself, whose training step must call `self(...)`.

    Raises:
        ValueError: If there is no network, or several and `target` is None.
    """
    if target is not None:
        _at(module, target)
        return target
    if _candidates(module):
        return find_target(module, None)
    networks = _children(module)
    if len(networks) != 1:
        raise ValueError(
            f"Expected one network inside {type(module).__name__}, but found {', '.join(networks) or 'none'}. "
            + (
                f"Say which with target='{networks[0]}', or with target='' that the module itself is the network."
                if networks
                else "Is it built later than configure_model?"
            )
        )
    return networks[0]


def _at(module: pl.LightningModule, target: str) -> nn.Module:
    try:
        return get_module(module, target)
    except ValueError:
        raise ValueError(
            f"Expected the path of a network inside {type(module).__name__} as target, but there is no module at "
            f"'{target}'. It has {', '.join(_children(module)) or 'none'}; '' is the module itself."
        ) from None


def _children(module: nn.Module) -> list[str]:
    """Return the names of the children with weights."""
    return [name for name, child in module.named_children() if any(True for _ in child.parameters())]


def _candidates(module: nn.Module, path: str = "") -> dict[nn.Module, str]:
    """Return the supported networks with their paths; a shared network by its first path."""
    network = unwrap(module)
    if is_supported(network):
        return {network: path}
    found: dict[nn.Module, str] = {}
    for name, child in module.named_children():
        for other, where in _candidates(child, f"{path}.{name}" if path else name).items():
            found.setdefault(other, where)
    return found
