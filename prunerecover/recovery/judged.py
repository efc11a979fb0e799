"""Keep what was done to a pruned network only where it brings its output nearer to the dense network's.

What is meant to help can harm: statistics from a few plain images are worse than those of a training with other
augmentation, and layers that are fitted one by one may leave the output further off. Each way is tried on three
quarters of the samples and judged on the others, by the output divergence; the nearest is done with all samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from prunerecover.calibration.divergence import OtherShape, mean_divergence
from prunerecover.model.batches import CalibrationSet, ModelInputs, call, predictions_of, split_batches
from prunerecover.model.evaluation import device_of, evaluating, uncompiled
from prunerecover.recovery.batchnorm import recalibrate_batchnorm, several_samples

AS_IT_IS, RECALIBRATED, RECONSTRUCTED = "as it is", "recalibrated", "reconstructed"
Way = Callable[[Sequence[ModelInputs]], None]  # changes a network in place, given samples


@dataclass(frozen=True)
class Kept:
    """What was kept of what can be done to a pruned network.

    Attributes:
        way: "as it is", "recalibrated" (the statistics of BatchNorm alone) or "reconstructed".
        divergence: Of each way from the dense network's output, on samples that were held out; empty if outputs cannot
            be compared, as a detector's boxes.
    """

    way: str
    divergence: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        others = ", ".join(f"{way} {value:.4g}" for way, value in self.divergence.items())
        return f"{self.way} (output divergence: {others})" if others else self.way


def keep_nearest(network: nn.Module, dense: nn.Module, samples: CalibrationSet, ways: Mapping[str, Way]) -> Kept:
    """Do to a network, in place, what brings its output nearest to the dense one's; as it is, if nothing does.

    After an error the network is as before.

    Args:
        network: Unwrapped, pruned.
        dense: What it is compared with; not changed.
        samples: Split ones.
        ways: By name; the last one is done where outputs cannot be compared.
    """
    with all_or_nothing(network):
        found = _divergences(network, dense, samples, ways)
        way = min(found, key=lambda name: found[name]) if found else list(ways)[-1]
        if way in ways:
            ways[way](samples.whole)
    return Kept(way, found)


def recalibrate_if_nearer(
    network: nn.Module, dense: nn.Module, batches: Sequence[ModelInputs], *, seed: int = 0
) -> Kept:
    """Estimate BatchNorm statistics anew, in place, if that brings the output nearer to the dense one's.

    Args:
        network: Unwrapped, pruned.
        dense: What it is compared with; not changed.
        batches: What the network is called with.
        seed: Of the samples that are held out.
    """
    samples = split_batches(batches, device_of(network), seed)
    return keep_nearest(network, dense, samples, {RECALIBRATED: recalibration(network)})


def recalibration(network: nn.Module) -> Way:
    """Return the way of estimating BatchNorm statistics anew."""
    return lambda samples: recalibrate_batchnorm(network, several_samples(samples) or samples)


@contextmanager
def all_or_nothing(network: nn.Module) -> Iterator[None]:
    """Give a network's tensors their values back if anything fails inside a `with` block."""
    values = _values(network)
    try:
        yield
    except BaseException:
        _put_back(values)
        raise


def _divergences(
    network: nn.Module, dense: nn.Module, samples: CalibrationSet, ways: Mapping[str, Way]
) -> dict[str, float]:
    """Return the divergence of each way, and of the network as it is, which it is afterwards; none: not comparable."""

    def divergence() -> float:
        try:
            value = mean_divergence(samples.held_out, outputs, _outputs(network, samples.held_out))
        except OtherShape:
            return math.inf
        return value if math.isfinite(value) else math.inf

    try:
        outputs = _outputs(dense, samples.held_out)
        found = {AS_IT_IS: divergence()}
    except TypeError:  # no output is a number with a fraction
        return {}
    for name, way in ways.items():
        values = _values(network)
        way(samples.fit)
        found[name] = divergence()
        _put_back(values)
    return found if min(found.values()) < math.inf else {}


@torch.no_grad()
def _outputs(network: nn.Module, batches: Sequence[ModelInputs]) -> list[Tensor]:
    with evaluating(network), uncompiled():
        return [predictions_of(call(network, batch)) for batch in batches]


def _values(network: nn.Module) -> list[tuple[Tensor, Tensor]]:
    return [(tensor, tensor.detach().clone()) for tensor in (*network.parameters(), *network.buffers())]


@torch.no_grad()
def _put_back(values: Sequence[tuple[Tensor, Tensor]]) -> None:
    for tensor, value in values:
        tensor.copy_(value)
