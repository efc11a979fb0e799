"""Calls taken out of a live module's forward, and how that is undone.

The module stays the same object, which keeps what others know it by: its place, its tensors, its hooks. So the network
itself can be rewritten, too.
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
    """The forward of the module at `path` made more calls, of parts that are gone.

    Attributes:
        path: Of the module.
        original: Its class before any of its calls were taken out.
        code: Of the forward that it had; None: that of its class.
        rerouted: Calls that were taken out before.
        parts: The children, parameters and buffers that are gone, by their paths in the module.
        training: Whether the module was in training mode.
        orders: For the places of these, the names that they had: path of the holder, and name of the registry.
    """

    path: str
    original: type[nn.Module]
    code: Forward | None
    rerouted: tuple[str, ...]
    parts: dict[str, nn.Module | Tensor]
    training: bool
    orders: dict[tuple[str, str], tuple[str, ...]]

    def undo(self, model: nn.Module, device: torch.device) -> None:
        """Give the module the parts and the forward that it had."""
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
        """Move the parts that are gone to the CPU."""
        for part in self.parts.values():
            if isinstance(part, nn.Module):
                part.cpu()
            else:
                move_tensor(part, torch.device("cpu"))


def reroute(model: nn.Module, path: str, calls: Sequence[str], journal: list[Any]) -> None:
    """Take calls out of the forward of a module.

    Args:
        model: Unwrapped.
        path: Of the module; the empty one is the model itself.
        calls: As of `without_calls`.
        journal: List of changes, to which this one is added first.

    Raises:
        ValueError: If there is no such module, its forward cannot be traced, or it makes no such call.
    """
    module = get_module(model, path)
    rewriting = find_rewriting(module, calls, f"'{path}'" if path else "")
    original, code, rerouted = forward_of(module)
    places = {part: place_of(module, part) for part in rewriting.gone}
    parts = {part: holder[name] for part, (*_, holder, name) in places.items()}
    orders = {(at, registry): tuple(holder) for at, registry, holder, _ in places.values()}
    journal.append(Rerouted(path, original, code, rerouted, parts, module.training, orders))
    install(module, rewriting)
