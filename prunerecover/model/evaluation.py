"""Evaluation of a model without a trace: evaluation mode, no gradients, and a full restoration afterwards.

Restored are the train/eval mode of every module, the buffers (also buffers added or exchanged by a forward pass),
dictionaries that modules use as caches, and the random state of the CPU and of the model's GPUs. Meanwhile decoders
keep no cache for a next token (`use_cache` in their configs), unless a call asks for one. Parameters are not copied: no
forward pass writes them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any, TypeVar
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import checkpoint

from prunerecover.model.batches import ModelInputs, as_inputs, without_labels
from prunerecover.model.key_values import caches_off

Found = TypeVar("Found")
NO_CACHES = frozenset(vars(nn.Module()))  # the dictionaries of every module


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Evaluate `models` inside a `with` block; afterwards the models are bit for bit as before.

    >>> net = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    >>> with evaluating(net):
    ...     net.training
    False
    >>> net.training
    True
    """
    modules = [module for model in models for module in model.modules()]
    modes = [module.training for module in modules]
    buffers = [{name: (b, _copy(b)) for name, b in module._buffers.items()} for module in modules]
    caches = [(cache, dict(cache)) for module in modules for cache in _caches(module)]
    with_values = [model for model in models if device_of(model).type != "meta"]  # else masks are read
    try:
        with torch.random.fork_rng(devices=_cuda_devices(*models)), torch.no_grad(), caches_off(*with_values):
            for model in models:
                model.eval()
            yield
    finally:
        for module, mode, kept in zip(modules, modes, buffers, strict=True):
            module.training = mode
            _restore_buffers(module, kept)
        for cache, entries in caches:
            cache.clear()
            cache.update(entries)


class _NoCheckpoint:
    """Replacement of `torch.utils.checkpoint.CheckpointFunction`: a plain call of the function."""

    @staticmethod
    def apply(function: Any, _: bool, *args: Any) -> Any:
        """Return the function's result."""
        return function(*args)


def _no_checkpoint(*_: Any, **__: Any) -> Iterator[None]:
    """Take no step before or after a checkpointed function."""
    yield


# Parts of `torch.utils.checkpoint.checkpoint`, looked up in the module at each call; the name of
# the second has a suffix since torch 2.14.
PASSING: dict[str, Any] = {"CheckpointFunction": _NoCheckpoint} | {
    name: _no_checkpoint for name in vars(checkpoint) if name.startswith("_checkpoint_without_reentrant_generator")
}


def train_but_for_statistics(model: nn.Module) -> None:
    """Put a model into training mode, except BatchNorms, which would refuse a single sample and write statistics.

    Args:
        model: Network inside `evaluating`, for the restoration of the mode.
    """
    model.train()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()


@contextmanager
def uncompiled(*, recurrent: bool = False) -> Iterator[None]:
    """Run compiled, fused and checkpointed parts eagerly and once: operations can be seen one by one.

    PyTorch's own encoders nest padded tokens for fused kernels, unreadable for hooks. A part under
    `torch.utils.checkpoint` would run again in a backward pass, together with its hooks.

    Args:
        recurrent: Whether recurrent layers must give gradients in evaluation mode, unlike cuDNN's.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with ExitStack() as stack:
            if recurrent:
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            stack.enter_context(mock.patch.multiple(checkpoint, **PASSING))
            if "torch._dynamo" in sys.modules:  # else nothing is compiled, and the import takes a second
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


@contextmanager
def plain_evaluation(*models: nn.Module) -> Iterator[None]:
    """Evaluate `models` eagerly and in ordinary arithmetic inside a `with` block, for planning.

    >>> net = nn.Dropout()
    >>> with plain_evaluation(net):
    ...     net(torch.ones(2))
    tensor([1., 1.])
    """
    with ordinary_arithmetic(), evaluating(*models), uncompiled():
        yield


@contextmanager
def ordinary_arithmetic() -> Iterator[None]:
    """Compute as outside of `torch.inference_mode` and `torch.autocast`, whatever the caller's state.

    Gradients can be taken then, and scores are not rounded in silence. Also a decorator.

    >>> with torch.autocast("cpu", torch.bfloat16), ordinary_arithmetic():
    ...     nn.Linear(2, 2)(torch.ones(1, 2)).dtype
    torch.float32
    """
    accelerator = torch.accelerator.current_accelerator()
    kinds = ("cpu",) if accelerator is None else ("cpu", accelerator.type)
    with torch.inference_mode(False), ExitStack() as stack:
        for kind in kinds:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter or buffer; the CPU for a model without either.

    >>> device_of(nn.Linear(2, 2, device="meta"))
    device(type='meta')
    """
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


def inputs_of(batch: Any, model: nn.Module) -> ModelInputs:
    """Return the inputs of a model for a batch of any form, without labels, on the model's device.

    Args:
        batch: Batch, see `as_inputs`.
        model: Network without wrappers.
    """
    return as_inputs(without_labels(batch, model)).to(device_of(model))


def _caches(module: nn.Module) -> list[dict[Any, Any]]:
    return [value for name, value in vars(module).items() if type(value) is dict and name not in NO_CACHES]


def _copy(buffer: Tensor | None) -> Tensor | None:
    return None if buffer is None else buffer.detach().clone()


def _restore_buffers(module: nn.Module, kept: dict[str, tuple[Tensor | None, Tensor | None]]) -> None:
    for name in [name for name in module._buffers if name not in kept]:
        del module._buffers[name]
    for name, (buffer, value) in kept.items():
        module._buffers[name] = buffer
        if buffer is None or value is None or buffer.is_meta:
            continue
        # Written only after a change: a write would invalidate a graph before its backward pass.
        if not torch.equal(buffer, value):
            with torch.inference_mode(buffer.is_inference()), torch.no_grad():
                if buffer.shape != value.shape:  # observers of torch.ao size buffers on the first data
                    buffer.resize_(value.shape)
                buffer.copy_(value)


def _cuda_devices(*models: nn.Module) -> list[int]:
    tensors = (t for model in models for t in (*model.parameters(), *model.buffers()))
    return sorted({t.device.index or 0 for t in tensors if t.device.type == "cuda"})


def unless_failing(measure: Callable[[], Found], *raised: type[Exception]) -> Found | None:
    """Return a measurement of a network without some units; None where it fails: its own code may raise anything.

    Args:
        measure: The measurement.
        *raised: Classes of errors with another cause than the network.

    Raises:
        torch.OutOfMemoryError: If memory runs out.
    """
    try:
        return measure()
    except Exception as error:
        if isinstance(error, (torch.OutOfMemoryError, *raised)):
            raise
        return None
