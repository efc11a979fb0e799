"""Removal of calls from a live module's forward, with the undo.

The module stays the same object, with the same place, tensors and hooks. Even the network itself can be rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.model.paths import get_module
from prunerecover.surgery.forward.code import Forward, forward_of, set_forward
from prunerecover.surgery.forward.devices import move_tensor, moved
from prunerecover.surgery.forward.rewritten_forward import find_rewriting, install, place_of, put_part


@dataclass(frozen=True)
class Rerouted:
    """Removal of calls from the forward of the module at `path`, with the removed parts.

    Attributes:
        path: Path of the module.
        original: Class before any removal of calls.
        code: Previous code of the forward; None: the code of the class.
        rerouted: Calls removed before.
        parts: Removed children, parameters and buffers, by path in the module.
        training: Whether the module was in training mode.
        orders: Previous order of names at the places of the parts, by path of the holder and name of the registry.
    """

    path: str
    original: type[nn.Module]
    code: Forward | None
    rerouted: tuple[str, ...]
    parts: dict[str, nn.Module | Tensor]
    training: bool
    orders: dict[tuple[str, str], tuple[str, ...]]

    def undo(self, model: nn.Module, device: torch.device) -> None:
        """Restore the parts and the forward of the module."""
        module = get_module(model, self.path)
        for path, part in self.parts.items():
            if isinstance(part, nn.Module):
                moved(part, device)
                if self.training != module.training:  # else each part keeps its own mode
                    part.train(module.training)
            else:
                move_tensor(part, device)
            put_part(module, path, part)
        for (path, registry), names in self.orders.items():
            held = vars(module.get_submodule(path))[registry]
            entries = [(name, held[name]) for name in names]
            held.clear()
            held.update(entries)
        set_forward(module, self.original, self.code, self.rerouted)

    def to_cpu(self) -> None:
        """Move the removed parts to the CPU."""
        for part in self.parts.values():
            if isinstance(part, nn.Module):
                part.cpu()
            else:
                move_tensor(part, torch.device("cpu"))


def reroute(model: nn.Module, path: str, calls: Sequence[str], journal: list[Any]) -> None:
    """Remove calls from the forward of a module.

    Args:
        model: Network without wrappers.
        path: Path of the module; the empty path is the model itself.
        calls: Names of calls, see `without_calls`.
        journal: List of changes; the removal is added first.

    Raises:
        ValueError: If the module is missing, or its forward cannot be traced or lacks a call.
    """
    module = get_module(model, path)
    rewriting = find_rewriting(module, calls, f"'{path}'" if path else "")
    original, code, rerouted = forward_of(module)
    places = {part: place_of(module, part) for part in rewriting.gone}
    parts = {part: holder[name] for part, (*_, holder, name) in places.items()}
    orders = {(at, registry): tuple(holder) for at, registry, holder, _ in places.values()}
    journal.append(Rerouted(path, original, code, rerouted, parts, module.training, orders))
    install(module, rewriting)
