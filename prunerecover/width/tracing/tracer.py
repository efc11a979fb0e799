"""Run a model once under a dispatch mode, and note what each operation ties together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prunerecover.cost.macs import every_kernel_visible
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.evaluation import evaluating
from prunerecover.width.tracing.rules import follow
from prunerecover.width.tracing.trace import Info, Trace


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, trace: Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        follow(self.trace, func, args, kwargs or {}, out)
        return out


def trace_model(model: nn.Module, inputs: ModelInputs) -> Trace:
    """Run a model once and note what its operations tie together.

    Args:
        model: Is left as it was.
        inputs: One batch.
    """
    trace = Trace()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        trace.note(tensor, Info(trace.ids.of_tensor(name, tensor), static=True))
    with evaluating(model), every_kernel_visible(), _places(model, trace), _Watch(trace):
        output = call(model, inputs)
    # Caches of keys and values are not what the model computes.
    for leaf in tree_leaves(output, is_leaf=lambda node: type(node).__name__.endswith("Cache")):
        if isinstance(leaf, Tensor):
            trace.ids.pin(*trace.info(leaf).maps)
            trace.statistics.extend(trace.info(leaf).statistics)
    return trace


@contextmanager
def _places(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Tell the trace which module is being called."""
    handles = []
    for path, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda _, args, path=path: trace.enter(path, args)))
        handles.append(module.register_forward_hook(lambda module, _, output: trace.leave(module, output)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
