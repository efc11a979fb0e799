"""Observer of a forward pass that notes what each operation ties together."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from prunerecover.graph.dimensions.rules import follow
from prunerecover.graph.dimensions.rules_recurrent import RECURRENT, follow_recurrent
from prunerecover.graph.dimensions.ties import Info, Ties
from prunerecover.model.paths import get_module

OUTPUT = "the model's output"


class Follower:
    """Notes what a forward pass that `watch` tells of ties together; recurrent layers are followed as a whole.

    Args:
        model: That is watched.

    Attributes:
        ties: What is noted.
    """

    def __init__(self, model: nn.Module) -> None:
        self.ties = Ties()
        self._model = model
        self._given: tuple[tuple[Any, ...], dict[str, Any]] | None = None  # of the recurrent layer that is running
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self.ties.note(tensor, Info(self.ties.ids.of_tensor(name, tensor), static=True))

    def enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a module is called."""
        self.ties.enter(path, args)
        if type(get_module(self._model, path)) in RECURRENT:
            self._given = args, kwargs

    def leave(self, path: str, module: nn.Module, output: Any) -> None:
        """Note that a module returned."""
        if self._given is not None and isinstance(module, nn.RNNBase):
            follow_recurrent(self.ties, module, *self._given, output)
            self._given = None
        self.ties.leave(module, output)

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note what an operation ties."""
        if self._given is None:
            follow(self.ties, func, args, kwargs, out)

    def finish(self, output: Any) -> None:
        """Note what the model returned, which stays; caches of keys and values are not what it computes."""
        for leaf in tree_leaves(output, is_leaf=lambda node: type(node).__name__.endswith("Cache")):
            if isinstance(leaf, Tensor):
                self.ties.ids.pin(*self.ties.info(leaf).maps)
                self.ties.statistics.extend(self.ties.info(leaf).statistics)
        self.ties.record_pins(OUTPUT)
