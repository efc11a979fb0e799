"""Observer of a forward pass that notes the ties of each operation."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from prunerecover.graph.dimensions.rules import follow
from prunerecover.graph.dimensions.rules_recurrent import RECURRENT, follow_recurrent
from prunerecover.graph.dimensions.ties import Info, Ties
from prunerecover.graph.dimensions.watching import Observer, Operation
from prunerecover.model.paths import get_module

OUTPUT = "the model's output"


class Follower(Observer):
    """Observer that notes ties in a forward pass, for `watch`; recurrent layers are followed as a whole.

    Args:
        model: Watched network.

    Attributes:
        ties: Noted ties.
    """

    def __init__(self, model: nn.Module) -> None:
        self.ties = Ties()
        self._model = model
        self._given: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # arguments of the running recurrent layer
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self.ties.note(tensor, Info(self.ties.ids.of_tensor(name, tensor), static=True))

    def enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call of a module."""
        self.ties.enter(path, args)
        if type(get_module(self._model, path)) in RECURRENT:
            self._given = args, kwargs

    def leave(self, path: str, module: nn.Module, output: Any) -> None:
        """Note the return of a module."""
        if self._given is not None and isinstance(module, nn.RNNBase):
            follow_recurrent(self.ties, module, *self._given, output)
            self._given = None
        self.ties.leave(module, output)

    def operation(self, operation: Operation) -> None:
        """Note the ties of an operation."""
        if self._given is None:
            follow(self.ties, operation)

    def finish(self, output: Any) -> None:
        """Pin the model's outputs, except caches of keys and values."""
        for leaf in tree_leaves(output, is_leaf=lambda node: type(node).__name__.endswith("Cache")):
            if isinstance(leaf, Tensor):
                self.ties.ids.pin(*self.ties.info(leaf).maps)
                self.ties.statistics.extend(self.ties.info(leaf).statistics)
        self.ties.record_pins(OUTPUT)
