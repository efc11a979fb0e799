"""BatchNorm statistics estimated anew: width surgery makes the old statistics wrong.

A few forward batches recover much of the accuracy of a narrowed model, whatever chose the units. The statistics are
plain averages over the batches, as under `momentum=None` of BatchNorm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from prunerecover.model.batches import ModelInputs, as_inputs, call, listed
from prunerecover.model.evaluation import evaluating, inputs_of, uncompiled
from prunerecover.model.paths import unwrap

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def recalibrate_batchnorm(model: nn.Module, batches: Iterable[Any]) -> None:
    """Replace the running statistics of every BatchNorm by their average over the batches, in place.

    Only BatchNorm layers are in training mode meanwhile (dropout is off); modes, momenta and the random state are
    restored. Models without BatchNorm and layers without a call keep their state. After an error the old statistics are
    back.

    Args:
        model: Any module, wrapped or not.
        batches: Calibration batches, 5 to 10 of the size used in training, with equal weights; labels are not read.

    Raises:
        ValueError: If there is no batch, or if statistics come out as NaN or infinite.
    """
    network = unwrap(model)
    set_statistics(network, estimated(network, listed(batches)))


def estimated(network: nn.Module, batches: Sequence[Any]) -> dict[str, dict[str, Tensor]]:
    """Return the averages over batches of the statistics of every BatchNorm with a call, by path and name.

    Args:
        network: Network; its state stays the same.
        batches: Calibration batches, as in `recalibrate_batchnorm`.

    Raises:
        ValueError: See `recalibrate_batchnorm`.
    """
    named = batchnorms(network)
    norms = list(named.values())
    if not norms:
        return {}
    momenta = [norm.momentum for norm in norms]
    try:
        with evaluating(network), uncompiled():
            for norm in norms:
                norm.momentum = None
                norm.reset_running_stats()
                norm.training = True
            _run(network, batches)
            found = {path: _statistics(path, norm) for path, norm in named.items()}
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    return {path: statistics for path, statistics in found.items() if statistics}


@torch.no_grad()
def set_statistics(network: nn.Module, statistics: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Set statistics of BatchNorm layers in place, by path and name."""
    for path, own in statistics.items():
        for name, value in own.items():
            network.get_buffer(f"{path}.{name}").copy_(value)


@contextmanager
def batch_statistics(network: nn.Module) -> Iterator[None]:
    """Have every BatchNorm normalise by the batch inside a `with` block; no statistics change.

    Args:
        network: Network in evaluation mode.
    """
    norms = list(batchnorms(network).values())
    tracking = [norm.track_running_stats for norm in norms]
    try:
        for norm in norms:
            norm.training, norm.track_running_stats = True, False
        yield
    finally:
        for norm, tracked in zip(norms, tracking, strict=True):
            norm.training, norm.track_running_stats = False, tracked


def normalisation(
    model: nn.Module, batches: Sequence[ModelInputs], *, narrowed: bool
) -> Callable[[nn.Module], AbstractContextManager[None]]:
    """Return the context of passes through copies of a network: `batch_statistics`, or none.

    Args:
        model: Dense network.
        batches: Batches of the passes; a single sample has no variance.
        narrowed: Whether layers may be narrowed, which makes the statistics of BatchNorm wrong.
    """
    by_batch = narrowed and bool(batchnorms(model)) and all(batch.n_samples > 1 for batch in batches)
    return batch_statistics if by_batch else lambda _: nullcontext()


def several_samples(batches: Sequence[Any]) -> list[Any]:
    """Return the batches of more than one sample: a single sample has no variance."""
    return [batch for batch in batches if as_inputs(batch).n_samples > 1]


def batchnorms(network: nn.Module) -> dict[str, _BatchNorm]:
    """Return the BatchNorm layers that keep statistics, by path."""
    return {path: m for path, m in network.named_modules() if isinstance(m, _BatchNorm) and m.running_mean is not None}


def _run(network: nn.Module, batches: Iterable[Any]) -> None:
    used = False
    for batch in batches:
        used = True
        call(network, inputs_of(batch, network))
    if not used:
        raise ValueError(
            "Expected at least one batch to estimate BatchNorm statistics on, but there was none. "
            "Was a generator consumed before?"
        )


def _statistics(path: str, norm: _BatchNorm) -> dict[str, Tensor]:
    """Copy the estimates before `evaluating` restores the old values; empty for a layer without a call."""
    if not norm.num_batches_tracked:
        return {}
    check_finite(path, norm)
    return {name: getattr(norm, name).clone() for name in STATISTICS}


def check_finite(path: str, norm: nn.Module) -> None:
    """Raise ValueError if statistics of the BatchNorm at a path are NaN or infinite."""
    for name in STATISTICS:
        if not getattr(norm, name).isfinite().all():
            raise ValueError(
                f"Expected finite BatchNorm statistics, but {name} of '{path}' came out as NaN or infinite. Do the "
                "batches or the weights hold such values?"
            )
