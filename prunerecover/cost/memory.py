"""Measure how much memory a forward pass needs beyond the weights and its inputs.

On CUDA this is the allocator's peak above what was allocated before, workspaces of the kernels included. Elsewhere it
is the peak of the tensors that exist at the same time during the pass, the output included, summed over their storages:
exact and repeatable, but blind to what a kernel allocates inside itself and to how the allocator rounds. The two are
therefore not comparable with one another, and a `Measurement` says which one it holds.
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
    """Return the peak in bytes and how it was taken: `"cuda allocator"` or `"tensor sizes"`.

    Args:
        model: On `device`; runs in evaluation mode.
        inputs: One batch, on `device`.
        device: Where the pass runs. On CUDA its peak counter is reset.
    """
    with evaluating(model):
        if device.type == "cuda":
            return _allocator_peak(model, inputs, device), "cuda allocator"
        existing = (*model.parameters(), *model.buffers(), *tree_leaves((inputs.args, inputs.kwargs)))
        with uncompiled(), LiveStorages(existing) as live:
            call(model, inputs)
        return live.peak, "tensor sizes"


def reset_peak_memory(device: torch.device) -> None:
    """Let `peak_memory` count from now on, where that is possible: not for the process on a CPU."""
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
    """Sum the sizes of the storages that operations inside the context create, while they live.

    Args:
        existing: Tensors whose storages do not count, such as weights and inputs.

    >>> with LiveStorages() as live:
    ...     _ = torch.zeros(4) + torch.ones(4)
    >>> live.peak
    48
    """

    def __init__(self, existing: Iterable[Any] = ()) -> None:
        """Start with nothing live."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._bytes = 0
        self._existing = {t.untyped_storage()._cdata for t in existing if isinstance(t, Tensor)}
        self._live: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and account for its results."""
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
