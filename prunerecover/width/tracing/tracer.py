"""Run a model once under a dispatch mode, and note what each operation ties together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from prunerecover.graph.watching import watch
from prunerecover.model.batches import ModelInputs
from prunerecover.model.paths import get_module
from prunerecover.width.tracing.rules import follow
from prunerecover.width.tracing.rules_recurrent import RECURRENT, follow_recurrent
from prunerecover.width.tracing.trace import Info, Trace

OUTPUT = "the model's output"


@dataclass
class _Follower:
    """Tells a trace what it observes; recurrent layers are told of as a whole.

    Attributes:
        trace: Of the forward pass.
        model: Its paths are those that are entered.
        given: What the recurrent layer that is being called was called with.
    """

    trace: Trace
    model: nn.Module
    given: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.trace.enter(path, args)
        if type(get_module(self.model, path)) in RECURRENT:
            self.given = args, kwargs

    def leave(self, path: str, module: nn.Module, output: Any) -> None:
        if self.given is not None and isinstance(module, nn.RNNBase):
            follow_recurrent(self.trace, module, *self.given, output)
            self.given = None
        self.trace.leave(module, output)

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if self.given is None:
            follow(self.trace, func, args, kwargs, out)


def trace_model(model: nn.Module, inputs: ModelInputs) -> Trace:
    """Run a model once and note what its operations tie together.

    Args:
        model: Is left as it was.
        inputs: One batch.
    """
    trace = Trace()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        trace.note(tensor, Info(trace.ids.of_tensor(name, tensor), static=True))
    output = watch(model, inputs, _Follower(trace, model))
    # Caches of keys and values are not what the model computes.
    for leaf in tree_leaves(output, is_leaf=lambda node: type(node).__name__.endswith("Cache")):
        if isinstance(leaf, Tensor):
            trace.ids.pin(*trace.info(leaf).maps)
            trace.statistics.extend(trace.info(leaf).statistics)
    trace.record_pins(OUTPUT)
    return trace
