"""Traces: forward passes watched for the computation graph, and for the dimensions tied in the pass.

No further module observes a network's computation. Code that needs both results takes a `Traced`: the network runs
once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from prunerecover.display.progress import progress
from prunerecover.graph.build import graph_of
from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.graph.dimensions.follower import Follower
from prunerecover.graph.dimensions.samples import SampleLayout, SeenTensors, differing, lying_apart
from prunerecover.graph.dimensions.ties import Ties
from prunerecover.graph.dimensions.watching import Observer, watch, watching_code
from prunerecover.graph.recorder import Recorder
from prunerecover.model.batches import ModelInputs
from prunerecover.model.checks import called_with
from prunerecover.model.copies import CAPTURING, share_copy
from prunerecover.model.evaluation import device_of, evaluating, inputs_of
from prunerecover.model.paths import unwrap
from prunerecover.plan.groups import Place


@dataclass(frozen=True, eq=False)
class Traced:
    """Result of tracing a forward pass of a network.

    Attributes:
        model: Copy of the network with shared tensors: modules may be edited, and put back.
        inputs: Inputs of the pass.
        graph: Computation graph.
        ties: Tied dimensions of the network's tensors.
        seen: Tensors that modules took and returned.
    """

    model: nn.Module
    inputs: ModelInputs
    graph: ComputationGraph
    ties: Ties
    seen: SeenTensors

    @cached_property
    def layouts(self) -> dict[Place, SampleLayout]:
        """Layout of samples in each tensor that modules take and return.

        A pass with another number of samples tells the sample dimension by the changed size. Where this dimension is
        not the first everywhere, the values of two more passes tell the sample of each row in longer dimensions. Empty
        for a network that takes no other number of samples, or no part of a batch.
        """
        n = min(self.inputs.n_samples, 2)
        times = 1 if self.inputs.n_samples > n else 2
        try:
            dims = differing(self.seen, self._seen(n, times))
        except Exception:  # sizes in the model's code, or tensors with rows besides samples
            return {}
        apart: set[Place] = set()
        if any(dims.values()) and device_of(self.model).type != "meta":
            once, twice = (self._seen(n, times, dims) for times in (1, 2))
            apart = lying_apart(once, twice, n)
        return {place: SampleLayout(dim, place in apart) for place, dim in dims.items()}

    def _seen(self, n: int, times: int, dims: dict[Place, int] | None = None) -> SeenTensors:
        """Run the network on the first `n` samples, each repeated `times` times."""
        seen = SeenTensors(dims or {})
        watch(self.model, self.inputs.select(torch.arange(n).repeat(times)), seen)
        return seen


def trace(model: nn.Module, inputs: ModelInputs, argument: str = "example_inputs") -> Traced:
    """Run a copy of a model with shared tensors once, and return the trace of the pass.

    Args:
        model: Network without wrappers; bit-identical afterwards.
        inputs: Batch on the model's device.
        argument: Name of the inputs in messages.

    Raises:
        ValueError: If the model does not take the inputs.
    """
    with progress("tracing the network"), evaluating(model), called_with(model, argument, inputs):
        twin = share_copy(model)  # in evaluation mode: in training, each read changes parametrizations
        follower, seen = Follower(twin), SeenTensors()
        graph, output = _recorded(twin, inputs, follower, seen)
    follower.finish(output)
    return Traced(twin, inputs, graph, follower.ties, seen)


def trace_graph(model: nn.Module, example_inputs: Any) -> ComputationGraph:
    """Run a model once, and return the computation as a graph.

    Args:
        model: Any module, wrapped or not, on any device; bit-identical afterwards.
        example_inputs: Batch in any form of a calibration batch.

    >>> import torch
    >>> graph = trace_graph(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(1, 4))
    >>> [node.kind for node in graph.nodes]
    ['input', 'layer', 'activation', 'layer', 'output']
    """
    model = unwrap(model)
    inputs = inputs_of(example_inputs, model)
    capturing = any(CAPTURING in vars(module) for module in model.modules())  # watching needs hooks newly installed
    return _recorded(share_copy(model) if capturing else model, inputs)[0]


def trace_training(model: nn.Module, inputs: ModelInputs) -> ComputationGraph:
    """Run a model once in training mode, and return the computation as a graph.

    Args:
        model: Copy of a network, without wrappers; may be written.
        inputs: Batch on the model's device.
    """
    return _recorded(model, inputs, training=True)[0]


def trace_ties(model: nn.Module, inputs: ModelInputs) -> Ties:
    """Run a model once, and return the tied dimensions.

    Args:
        model: Copy for trials; bit-identical afterwards.
        inputs: Batch on the model's device.
    """
    follower = Follower(model)
    follower.finish(watch(model, inputs, follower))
    return follower.ties


def _recorded(
    model: nn.Module, inputs: ModelInputs, *others: Observer, training: bool = False
) -> tuple[ComputationGraph, Any]:
    """Return the graph of a pass with further observers, and the output of the model."""
    recorder = Recorder(model, inputs)
    with watching_code(model, recorder):
        output = watch(model, inputs, recorder, *others, training=training)
    recorder.finish(output)
    return graph_of(recorder), output
