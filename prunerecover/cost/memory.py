"""Peak memory of a forward pass beyond the weights and the inputs.

On CUDA, the peak is the allocator's, above the memory allocated before, workspaces of the kernels included. On other
devices, the peak is the size of all tensors alive at the same time during the pass, the output included, summed over
storages: exact and repeatable, but blind to allocations inside kernels and to the allocator's rounding. The two are
therefore not comparable, and a `Measurement` names the source of its figure.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.evaluation import evaluating, uncompiled


def peak_activations(model: nn.Module, inputs: ModelInputs, device: torch.device) -> tuple[int, str]:
    """Return the peak in bytes and its source: `"cuda allocator"` or `"tensor sizes"`.

    Args:
        model: Model on `device`; runs in evaluation mode.
        inputs: Batch on `device`.
        device: Device of the pass. On CUDA, the peak counter is reset.
    """
    with evaluating(model):
        if device.type == "cuda":
            return _allocator_peak(model, inputs, device), "cuda allocator"
        existing = (*model.parameters(), *model.buffers(), *tree_leaves((inputs.args, inputs.kwargs)))
        with uncompiled(), LiveStorages(existing) as live:
            call(model, inputs)
        return live.peak, "tensor sizes"


def reset_peak_memory(device: torch.device) -> None:
    """Restart the count of `peak_memory`, if possible: not for the process on a CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """Return the peak memory of all work so far in bytes: of the CUDA allocator, elsewhere of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _allocator_peak(model: nn.Module, inputs: ModelInputs, device: torch.device) -> int:
    call(model, inputs)  # libraries allocate their workspaces once, on the first call
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call(model, inputs)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sum of the sizes of storages created by operations inside the context, while alive.

    Args:
        existing: Tensors with storages to leave out, for example weights and inputs.

    >>> with LiveStorages() as live:
    ...     _ = torch.zeros(4) + torch.ones(4)
    >>> live.peak
    48
    """

    def __init__(self, existing: Iterable[Any] = ()) -> None:
        """Start without any live storage."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._bytes = 0
        self._existing = {t.untyped_storage()._cdata for t in existing if isinstance(t, Tensor)}
        self._live: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count its results."""
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._existing or key in self._live:
            return

        def gone(_: Any) -> None:
            del self._live[key]
            self._bytes -= size

        self._live[key] = weakref.ref(storage, gone)
        self._bytes += size
        self.peak = max(self.peak, self._bytes)
