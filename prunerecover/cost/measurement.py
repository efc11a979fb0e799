"""Measurement of a model's cost: parameters, MACs, latency and memory, with the environment of the measurement."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from prunerecover.cost.environment import device_name, versions
from prunerecover.cost.latency import median_latency, shared_device
from prunerecover.cost.macs import count_macs
from prunerecover.cost.memory import peak_activations
from prunerecover.model.batches import as_inputs


@dataclass(frozen=True)
class Measurement:
    """Cost of a model on one batch.

    Args:
        parameters: Number of parameters, shared parameters once.
        parameter_bytes: Size of the parameters in bytes.
        macs: Multiply-accumulate operations of one forward pass of the whole batch (see `prunerecover.cost.macs`).
        latency_ms: Median time of one forward pass, or None if not timed.
        activation_bytes: Peak memory of a forward pass beyond weights and inputs.
        activation_source: Source of the peak: `"cuda allocator"` or `"tensor sizes"` (see `prunerecover.cost.memory`).
        batch_size: Samples in the batch.
        device: Device of the measurement.
        device_name: Name of the processor or accelerator.
        dtype: Type of the weights.
        threads: CPU threads of PyTorch.
        versions: Versions of the software.
    """

    parameters: int
    parameter_bytes: int
    macs: int
    latency_ms: float | None
    activation_bytes: int
    activation_source: str
    batch_size: int
    device: str
    device_name: str
    dtype: str
    threads: int
    versions: dict[str, str]

    @property
    def macs_per_sample(self) -> float:
        """MACs of one sample of the batch."""
        return self.macs / self.batch_size


def measure(
    model: nn.Module,
    example_inputs: Any,
    device: torch.device | str | None = None,
    *,
    repeats: int = 20,
    threads: int | None = None,
) -> Measurement:
    """Measure a model in evaluation mode; the model is bit-identical afterwards.

    To compare two models use `latency_ratio` or `compare`: medians taken separately drift with the machine.

    Args:
        model: Any module with weights.
        example_inputs: Batch: a tensor, a tuple that begins with the input, a mapping of keyword arguments, or
            `ModelInputs`.
        device: Device of the measurement; default: the model's. On another device, a copy of the model is measured.
        repeats: Timed forward passes; 0 skips the timing.
        threads: CPU threads during the timing; default: PyTorch's present number.

    Raises:
        TypeError: If the model is no module.
        ValueError: If the model is on the meta device, or a number is out of range.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"Expected a network, an nn.Module, but got {type(model).__name__}. Pass the model itself.")
    if not isinstance(repeats, int) or repeats < 0:
        raise ValueError(f"Expected argument repeats to be a whole number >= 0, but got {repeats!r}. For example 20.")
    here = shared_device(model)
    place = here if device is None else torch.empty(0, device=device).device
    if place != here:
        model = copy.deepcopy(model).to(place)
    inputs = as_inputs(example_inputs).to(place)
    peak, source = peak_activations(model, inputs, place)
    parameters = list(model.parameters())
    return Measurement(
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.nbytes for p in parameters),
        macs=count_macs(model, inputs),
        latency_ms=median_latency(model, inputs, repeats, threads) if repeats else None,
        activation_bytes=peak,
        activation_source=source,
        batch_size=inputs.n_samples,
        device=str(place),
        device_name=device_name(place),
        dtype=str(next((p.dtype for p in parameters if p.is_floating_point()), torch.get_default_dtype())),
        threads=threads or torch.get_num_threads(),
        versions=versions(),
    )
