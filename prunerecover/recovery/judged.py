"""Judged recovery: a change of a pruned network stays only where the output comes nearer to the dense output.

Recovery can harm: statistics from a few plain images are worse than statistics from a training with augmentation, and
layers fitted one by one may leave the output further off. Each way is tried on three quarters of the samples and judged
on the held-out quarter, by the output divergence. A way helps if the output comes nearer, and no part of the output
(objects, boxes, classes; heads) moves further off, both by more than the standard error over samples: parts cannot be
weighed against each other without labels. Among helpful ways, the smallest change within `CLOSE` of the dense output is
applied, else the nearest: a ResNet-18 in the middle of a training is as good with new statistics as reconstructed, and
trains on better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prunerecover.calibration.samples import CalibrationSet, split_batches
from prunerecover.divergence.measure import divergence_by_sample
from prunerecover.divergence.outputs import OtherShape, Outputs, compared
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.evaluation import device_of, evaluating, uncompiled
from prunerecover.plan.plan import Plan
from prunerecover.recovery.batchnorm import recalibrate_batchnorm, several_samples
from prunerecover.recovery.dense_reference import DenseNorms, by_batch, recalibrate_as_dense

CLOSE = 0.02  # divergence, in nats of logits or relative to squares, at which outputs are as good as the dense ones
AS_IT_IS, RECALIBRATED, RECONSTRUCTED = "as it is", "recalibrated", "reconstructed"
Way = Callable[[Sequence[ModelInputs]], None]  # changes a network in place, given samples
BySample = NDArray[np.float64]  # `(samples, parts)` of a divergence; infinite if outputs have other shapes


@dataclass(frozen=True)
class Kept:
    """The kept way, and the divergences behind the decision.

    Attributes:
        way: Name of the way: "as it is", "recalibrated" (BatchNorm statistics alone) or "reconstructed".
        divergence: Divergence from the dense output on held-out samples, by way; empty if outputs cannot be compared,
            as the boxes of a detector.
    """

    way: str
    divergence: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        others = ", ".join(f"{way} {value:.4g}" for way, value in self.divergence.items())
        return f"{self.way} (output divergence: {others})" if others else self.way


def keep_nearest(network: nn.Module, dense: nn.Module, samples: CalibrationSet, ways: Mapping[str, Way]) -> Kept:
    """Apply the choice of `nearest` to a network, in place; the network stays as it is if no way helps.

    After an error the network is as before.

    Args:
        network: Pruned network without wrappers.
        dense: Dense network to compare with; not changed.
        samples: Calibration samples, split.
        ways: Ways by name, smaller changes first; the last is applied where outputs cannot be compared.
    """
    with all_or_nothing(network):
        found = _divergences(network, dense, samples, ways)
        way = nearest(found) if found else list(ways)[-1]
        if way in ways:
            ways[way](samples.whole)
    return Kept(way, {name: _mean(values) for name, values in found.items()})


def nearest(found: Mapping[str, BySample]) -> str:
    """Return the first helpful way that comes `CLOSE`, else the nearest helpful way, else `AS_IT_IS`.

    >>> found = {"as it is": [[2.0], [4.0]], "far": [[0.0], [5.9]], "near": [[1.9], [3.8]]}
    >>> nearest({way: np.array(values) for way, values in found.items()})
    'near'

    Args:
        found: Divergence of each sample, in parts, by way, `AS_IT_IS` included.
    """
    able = [way for way, values in found.items() if way != AS_IT_IS and _helps(found[AS_IT_IS], values)]
    close = (way for way in able if _mean(found[way]) <= CLOSE)
    return next(close, min((AS_IT_IS, *able), key=lambda way: _mean(found[way])))


def _helps(as_it_is: BySample, values: BySample) -> bool:
    if not np.isfinite(as_it_is).all() or not np.isfinite(values).all():
        return _mean(values) < _mean(as_it_is)
    nearer = as_it_is - values
    columns = np.column_stack([nearer.sum(1), nearer])
    error = columns.std(0, ddof=1) / len(columns) ** 0.5 if len(columns) > 1 else 0.0 * columns[0]
    mean = columns.mean(0)
    return bool(mean[0] > error[0] and (mean[1:] >= -error[1:]).all())


def _mean(values: BySample) -> float:
    return float(values.sum(1).mean())


def recalibrate_if_nearer(
    network: nn.Module, dense: nn.Module, batches: Sequence[ModelInputs], *, seed: int = 0
) -> Kept:
    """Estimate BatchNorm statistics anew, in place, if the output comes nearer to the dense output.

    Args:
        network: Pruned network without wrappers.
        dense: Dense network to compare with; not changed.
        batches: Calibration batches, without labels.
        seed: Seed of the choice of held-out samples.
    """
    samples = split_batches(batches, device_of(network), seed)
    return keep_nearest(network, dense, samples, {RECALIBRATED: recalibration(network)})


def recalibration(network: nn.Module, dense: nn.Module | None = None, plan: Plan | None = None) -> Way:
    """Return the recalibration of BatchNorm statistics as a way.

    Args:
        network: Pruned network.
        dense: Dense network, for statistics as far from those of the samples as there; None: those of the samples.
        plan: Plan that leads from one to the other.
    """

    def way(samples: Sequence[ModelInputs]) -> None:
        samples = several_samples(samples) or samples
        if dense is None or plan is None:
            recalibrate_batchnorm(network, samples)
        else:
            recalibrate_as_dense(network, samples, DenseNorms(dense, samples, by_batch).after(plan))

    return way


@contextmanager
def all_or_nothing(network: nn.Module) -> Iterator[None]:
    """Restore the values of the tensors of a network if an error is raised inside a `with` block."""
    values = _values(network)
    try:
        yield
    except BaseException:
        _put_back(values)
        raise


def _divergences(
    network: nn.Module, dense: nn.Module, samples: CalibrationSet, ways: Mapping[str, Way]
) -> dict[str, BySample]:
    """Return the divergences by way, `AS_IT_IS` included; empty if not comparable. The network is restored."""

    def divergence() -> BySample:
        pruned = _outputs(network, samples.held_out)
        try:
            parts = [divergence_by_sample(*each) for each in zip(samples.held_out, outputs, pruned, strict=True)]
        except OtherShape:
            return np.array([[math.inf]])
        return np.nan_to_num(np.concatenate(parts), nan=math.inf, posinf=math.inf)

    try:
        outputs = _outputs(dense, samples.held_out)
        found = {AS_IT_IS: divergence()}
    except TypeError:  # no output of floating point
        return {}
    for name, way in ways.items():
        values = _values(network)
        way(samples.fit)
        found[name] = divergence()
        _put_back(values)
    return found if any(np.isfinite(values).all() for values in found.values()) else {}


@torch.no_grad()
def _outputs(network: nn.Module, batches: Sequence[ModelInputs]) -> list[Outputs]:
    with evaluating(network), uncompiled():
        return [compared(call(network, batch)) for batch in batches]


def _values(network: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return [(tensor, tensor.detach().clone()) for tensor in (*network.parameters(), *network.buffers())]


@torch.no_grad()
def _put_back(values: Sequence[tuple[Tensor, Tensor]]) -> None:
    for tensor, value in values:
        tensor.copy_(value)
