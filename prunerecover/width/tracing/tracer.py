"""Run a model once under a dispatch mode, and note what each operation ties together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from prunerecover.graph.watching import watch
from prunerecover.model.batches import ModelInputs
from prunerecover.width.tracing.rules import follow
from prunerecover.width.tracing.trace import Info, Trace

OUTPUT = "the model's output"


@dataclass(frozen=True)
class _Follower:
    """Tells a trace what it observes."""

    trace: Trace

    def enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.trace.enter(path, args)

    def leave(self, path: str, module: nn.Module, output: Any) -> None:
        self.trace.leave(module, output)

    def operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
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
    output = watch(model, inputs, _Follower(trace))
    # Caches of keys and values are not what the model computes.
    for leaf in tree_leaves(output, is_leaf=lambda node: type(node).__name__.endswith("Cache")):
        if isinstance(leaf, Tensor):
            trace.ids.pin(*trace.info(leaf).maps)
            trace.statistics.extend(trace.info(leaf).statistics)
    trace.record_pins(OUTPUT)
    return trace
