"""Counted costs, by name: a function of a network and inputs for each cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from prunerecover.cost.active_parameters import active_parameters
from prunerecover.cost.checkpoint_size import checkpoint_bytes
from prunerecover.cost.macs import count_macs
from prunerecover.cost.served_memory import served_memory
from prunerecover.cost.units.serving import Serving
from prunerecover.model.batches import ModelInputs

Count = Callable[[nn.Module, ModelInputs, Serving], float]


@dataclass(frozen=True)
class Counted:
    """Cost found by counting.

    Attributes:
        count: Function that counts the cost, for all samples of the inputs.
        runs: Whether the function runs the network, so that a copy without values is not enough.
    """

    count: Count
    runs: bool = False


def _served(network: nn.Module, example: ModelInputs, serving: Serving) -> float:
    if not serving.batch:
        raise ValueError(
            "Expected a batch and a number of tokens for the memory of a language model, but got none. For example "
            "plan_pruning(model, Budget(memory=0.3, batch=8, tokens=4096), batches=...)."
        )
    return served_memory(network, example, serving)


COUNTED: Mapping[str, Counted] = {
    "macs": Counted(lambda network, example, _: count_macs(network, example), runs=True),
    "params": Counted(lambda network, *_: sum(p.numel() for p in network.parameters())),
    "memory": Counted(_served, runs=True),
    "checkpoint": Counted(lambda network, *_: checkpoint_bytes(network)),
    "active_params": Counted(lambda network, *_: active_parameters(network)),
}
