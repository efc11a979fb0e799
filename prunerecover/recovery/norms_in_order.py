"""Statistics of BatchNorm layers over all samples together, one layer after another in the order of a pass.

Each layer is estimated in evaluation mode, behind layers with final statistics. The result depends neither on the split
of samples into batches nor, through the noise of a batch, on neighbouring samples. A layer with several calls in a pass
keeps the old statistics, averages over the calls: good enough if the inputs come near to the dense inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.calibration.front_to_back import FrontToBack
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.hooks import Reached, removed_after
from prunerecover.model.paths import get_module
from prunerecover.recovery.batchnorm import STATISTICS, batchnorms, check_finite, recalibrate_batchnorm, several_samples
from prunerecover.recovery.dense_reference import DenseNorm, Statistics, moved_at


class NormsInOrder:
    """Estimator of the statistics of the BatchNorm layers of a network, up to a layer at a time.

    Args:
        network: Network in evaluation mode.
        samples: Calibration batches of the network.
        dense: Layers of the dense network by path, with `pooled` statistics over the same samples; see `DenseNorms`.

    Attributes:
        dense: Layers of the dense network by path; empty if unknown.
        passes: Passes of the network over the samples, up to layers in order.
    """

    def __init__(
        self, network: nn.Module, samples: Sequence[ModelInputs], dense: Mapping[str, DenseNorm] | None = None
    ) -> None:
        self.network, self.samples, self.dense = network, samples, dense or {}
        every, self.passes = batchnorms(network), FrontToBack(network, samples)
        self.norms = {path: norm for path, norm in every.items() if self.passes.calls.get(path) == 1}
        self.settled: set[str] = set()
        self._estimate_at_once([norm for path, norm in every.items() if path not in self.norms])

    def settle(self, before: str | None = None) -> None:
        """Estimate the open layers before the first call of a layer; None: all open layers.

        Args:
            before: Path of the layer.

        Raises:
            ValueError: If statistics come out as NaN or infinite.
        """
        for path in self.passes.calls:
            if path == before:
                return
            if path in self.norms and path not in self.settled:
                self.settle_one(path, path)

    def settle_one(self, path: str, before: str) -> None:
        """Estimate one BatchNorm layer; a layer without inputs is left alone.

        Args:
            path: Path of the BatchNorm layer.
            before: Path of the layer where the final part of the network ends.
        """
        if (found := self._pooled(path, before)) is not None:
            self.set(path, *moved_at(self.dense.get(path), *found))

    def set(self, path: str, mean: Tensor, variance: Tensor) -> None:
        """Set the statistics of a layer, `(C,)` each, and mark the layer as final."""
        norm: Any = self.norms[path]
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
        norm.num_batches_tracked.fill_(len(self.samples))
        check_finite(path, norm)
        self.settled.add(path)

    def statistics(self) -> dict[str, Tensor]:
        """Return a copy of the estimated statistics, by buffer name."""
        return {
            f"{path}.{name}": getattr(norm, name).clone() for path, norm in self.norms.items() for name in STATISTICS
        }

    def _estimate_at_once(self, left: Sequence[Any]) -> None:
        """Begin with statistics by batch, except in layers with several calls."""
        if several := several_samples(self.samples):
            before = [(norm.running_mean.clone(), norm.running_var.clone()) for norm in left]
            recalibrate_batchnorm(self.network, several)
            for norm, (mean, variance) in zip(left, before, strict=True):
                norm.running_mean.copy_(mean)
                norm.running_var.copy_(variance)

    def _pooled(self, path: str, before: str) -> tuple[Tensor, Tensor] | None:
        """Return mean and unbiased variance of the inputs of a norm over samples and positions; None without a call."""
        found = _Pooled()

        def note(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            found.add(args[0])
            raise Reached

        with removed_after(get_module(self.network, path).register_forward_pre_hook(note)):
            for inputs in self.samples:
                with suppress(Reached):
                    self.passes.run(inputs, before)
        return found.statistics if found.count else None


class _Pooled:
    """Mean and unbiased variance of the inputs of a norm over samples and positions."""

    def __init__(self) -> None:
        self.count, self._total, self._square = 0, torch.zeros(()), torch.zeros(())

    def add(self, x: Tensor) -> None:
        """Add a batch of inputs, `(N, C, ...)`."""
        x = x.detach().float()
        n, others = x.numel() // x.shape[1], [dim for dim in range(x.ndim) if dim != 1]
        variance, mean = (each.double() for each in torch.var_mean(x, others, correction=0))
        self.count, self._total = self.count + n, n * mean + self._total
        self._square = n * (variance + mean.square()) + self._square

    @property
    def statistics(self) -> Statistics:
        """Mean and variance, `(C,)` each."""
        mean = self._total / self.count
        biased = (self._square / self.count - mean.square()).clamp(min=0)
        return mean, biased * self.count / max(self.count - 1, 1)


def pooled(network: nn.Module, samples: Sequence[ModelInputs]) -> dict[str, Statistics]:
    """Return the statistics of every BatchNorm over all samples together, in evaluation mode, by path.

    Args:
        network: Network in evaluation mode.
        samples: Calibration batches of the network.
    """
    found = {path: _Pooled() for path in batchnorms(network)}

    def noting(path: str) -> Any:
        return get_module(network, path).register_forward_pre_hook(lambda _, args: found[path].add(args[0]))

    with removed_after(*map(noting, found)), torch.no_grad():
        for inputs in samples:
            call(network, inputs)
    return {path: own.statistics for path, own in found.items() if own.count}
