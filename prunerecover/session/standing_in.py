"""A copy of a network in the place of the network itself, for as long as code runs that knows only the latter."""

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
    """Have a network be what a copy of it is, parts, hooks and forward, inside a `with` block.

    The network stays the same object, so that everything which holds it or calls it meets the copy's parts.

    Args:
        copied: Copy, perhaps pruned.
        network: Original; it is afterwards what it was.
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
    """Return a function of a copy of a network which also serves where it calls the network itself.

    A training step, or a loss that closes over the network, does not read its first argument.

    Args:
        network: Original.
        function: `function(network, batch)`, such as a loss.
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
