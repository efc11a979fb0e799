"""Stand-in for a network: a copy takes the place of the original while code with a reference to the original runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from torch import nn

Result = TypeVar("Result")
OF_TRAINERS = ("_trainer",)  # attributes of Lightning that a copy leaves behind


@contextmanager
def standing_in(copied: nn.Module, network: nn.Module) -> Iterator[None]:
    """Give a network the parts, hooks and forward of a copy inside a `with` block.

    The network stays the same object, so every holder or caller of the network meets the parts of the copy.

    Args:
        copied: Copy, perhaps pruned.
        network: Original, restored afterwards.
    """
    if copied is network:
        yield
        return
    own, kind = dict(vars(network)), type(network)
    attached = {name: own[name] for name in OF_TRAINERS if name in own}
    try:
        _become(network, type(copied), {**vars(copied), **attached})
        yield
    finally:
        _become(network, kind, own)


def bound_to(network: nn.Module, function: Callable[[nn.Module, Any], Result]) -> Callable[[nn.Module, Any], Result]:
    """Return a function of a copy of a network, also valid if the function calls the original.

    A training step, or a loss that closes over the network, does not read the first argument.

    Args:
        network: Original network.
        function: Function `function(network, batch)`, such as a loss.
    """

    @wraps(function)
    def bound(copied: nn.Module, batch: Any) -> Result:
        with standing_in(copied, network):
            return function(copied, batch)

    return bound


def _become(network: nn.Module, kind: type[nn.Module], attributes: dict[str, Any]) -> None:
    object.__setattr__(network, "__class__", kind)
    vars(network).clear()
    vars(network).update(attributes)
