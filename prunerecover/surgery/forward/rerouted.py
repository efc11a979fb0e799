"""Removal of calls from a live module's forward, with the undo.

The module stays the same object, with the same place, tensors and hooks. Even the network itself can be rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.model.paths import get_module
from prunerecover.surgery.forward.changes import Change, moved
from prunerecover.surgery.forward.code import Forward, forward_of, set_forward
from prunerecover.surgery.forward.rewritten_forward import find_rewriting, install, place_of


@dataclass(frozen=True)
class Rerouted(Change):
    """Removal of calls from the forward of the module at `path`, with the removed parts.

    Attributes:
        path: Path of the module.
        original: Class before any removal of calls.
        code: Previous code of the forward; None: the code of the class.
        rerouted: Calls removed before.
        gone: Removed children, parameters and buffers, by place in the module; see `place_of`.
        training: Whether the module was in training mode.
        orders: Previous order of names at the places of the parts, by path of the holder and name of the registry.
    """

    path: str
    original: type[nn.Module]
    code: Forward | None
    rerouted: tuple[str, ...]
    gone: dict[tuple[str, str, str], nn.Module | Tensor]
    training: bool
    orders: dict[tuple[str, str], tuple[str, ...]]

    @property
    def parts(self) -> Iterable[Any]:
        """The removed parts."""
        return self.gone.values()

    def undo(self, model: nn.Module, device: torch.device) -> None:
        """Restore the parts and the forward of the module."""
        module = get_module(model, self.path)
        for (at, registry, name), part in self.gone.items():
            if isinstance(part, nn.Module) and self.training != module.training:  # else each part keeps its own mode
                part.train(module.training)
            vars(module.get_submodule(at))[registry][name] = moved(part, device)
        for (at, registry), names in self.orders.items():
            held = vars(module.get_submodule(at))[registry]
            entries = [(name, held[name]) for name in names]
            held.clear()
            held.update(entries)
        set_forward(module, self.original, self.code, self.rerouted)


def reroute(model: nn.Module, path: str, calls: Sequence[str], journal: list[Any]) -> None:
    """Remove calls from the forward of a module.

    Args:
        model: Network without wrappers.
        path: Path of the module; the empty path is the model itself.
        calls: Names of calls, see `find_rewriting`.
        journal: List of changes; the removal is added first.

    Raises:
        ValueError: If the module is missing, or its forward cannot be traced or lacks a call.
    """
    module = get_module(model, path)
    rewriting = find_rewriting(module, calls, f"'{path}'" if path else "")
    holders = {
        place: vars(module.get_submodule(place[0]))[place[1]]
        for place in (place_of(module, part) for part in rewriting.gone)
    }
    gone = {place: holder[place[2]] for place, holder in holders.items()}
    orders = {place[:2]: tuple(holder) for place, holder in holders.items()}
    journal.append(Rerouted(path, *forward_of(module), gone, module.training, orders))
    install(module, rewriting)
