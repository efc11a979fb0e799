"""Order of removal of the channels of convolutions, by the error of the refitted convolution.

Reconstruction refits a convolution to its dense outputs after the surgery. Without some input channels, the error of
the refitted convolution, behind the BatchNorm, follows in closed form from the second moments of the input patches. The
channel of least error goes first, step by step: the optimal brain surgeon by groups (Hassibi & Stork 1993; Kurtic
et al. 2023, arXiv 2302.04089, eq. 3). Gate-Taylor scores ignore the compensation by remaining channels, but still
decide the number of removed channels per group.

Not covered: groups with several readers, readers other than plain convolutions, and patches of more than `LARGEST`
entries, whose second moments would not fit into memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.calibration.moments import LARGEST, Moments
from prunerecover.graph.computation_graph import ComputationGraph
from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.model.batches import ModelInputs
from prunerecover.model.paths import get_module
from prunerecover.plan.groups import Group
from prunerecover.recovery.branch_ends import NO_NORM, norms_behind
from prunerecover.recovery.reconstruction import ROWS
from prunerecover.recovery.reconstruction_order import is_plain
from prunerecover.recovery.reconstruction_rows import rows_of
from prunerecover.session.session import Session
from prunerecover.width.compensation import collected

STEPS = 64  # at most, for the order of a group: large groups lose several channels in a step


def channel_orders(session: Session, groups: Sequence[Group], batches: Sequence[ModelInputs]) -> dict[str, Tensor]:
    """Return the position of each channel in the order of removal, `(size,)`, by group; 0 goes first.

    Args:
        session: Session with the dense network and the seed of the choice of patches.
        groups: Groups of channels; groups without a convolution as only reader are left out.
        batches: Calibration samples on the model's device, for one pass.
    """
    model, graph = session.model, session.traced.graph
    readers = {path: group.name for group in groups if (path := _only_reader(model, graph, group))}
    norms = norms_behind(model, graph, readers)
    moments = _moments_of(model, list(readers), batches, session.seed)
    return {
        readers[path]: removal_positions_of(_behind_norm(model, path, norms.get(path, NO_NORM)), own.inverse())
        for path, own in moments.items()
    }


def removal_positions_of(weight: Tensor, inverse: Tensor) -> Tensor:
    """Return the position of each channel in the order of removal, `(channels,)`; 0 goes first.

    Args:
        weight: Weights on the entries of a patch, `(outputs, channels, entries per channel)`.
        inverse: Inverse of the covariance of the entries, `(channels * entries, channels * entries)`.
    """
    _, size, span = weight.shape
    weight = weight.flatten(1)
    positions, alive = torch.zeros(size, dtype=torch.long), torch.arange(size)
    entries = torch.arange(size * span).view(size, span)
    while len(alive):
        own = weight[:, entries[alive]].permute(1, 2, 0)
        within = inverse[entries[alive][:, :, None], entries[alive][:, None, :]]
        lost = (own * torch.linalg.solve(within, own)).sum((1, 2))
        first = lost.argsort(stable=True)[: max(1, size // STEPS)]
        gone = entries[alive[first]].flatten()
        positions[alive[first]] = size - len(alive) + torch.arange(len(first))
        taken = torch.linalg.solve(inverse[gone][:, gone], inverse[gone])
        weight, inverse = weight - weight[:, gone] @ taken, inverse - inverse[:, gone] @ taken
        alive = alive[~torch.isin(torch.arange(len(alive)), first)]
    return positions


def dealt_anew(scores: Scores, orders: Mapping[str, Tensor]) -> Scores:
    """Return the scores with the values of each group dealt to its units in another order.

    >>> dealt_anew({"conv": torch.tensor([5.0, 1.0, 3.0])}, {"conv": torch.tensor([0, 2, 1])})
    {'conv': tensor([1., 5., 3.])}

    Args:
        scores: Scores by group; low scores go first.
        orders: Positions in the order of removal by group; groups without positions keep their scores.
    """
    return {name: own.sort().values[orders[name]] if name in orders else own for name, own in scores.items()}


def _only_reader(model: nn.Module, graph: ComputationGraph, group: Group) -> str:
    """Return the path of a group's only reader, a plain convolution of the group's channels alone; else empty."""
    parts = [part for part in group.slices if not part.makes]
    path = parts[0].tensor.rpartition(".")[0] if len(parts) == 1 else ""
    layer: Any = get_module(model, path) if graph.times.get(path) == 1 else None
    plain = isinstance(layer, nn.Conv2d) and is_plain(layer) and layer.weight[0].numel() <= LARGEST
    return path if plain and group.size == layer.in_channels and parts[0].dim == 1 else ""


def _moments_of(
    model: nn.Module, paths: Sequence[str], batches: Sequence[ModelInputs], seed: int
) -> dict[str, Moments]:
    """Return the moments of the input patches of convolutions, by path."""
    samples, generator = sum(inputs.n_samples for inputs in batches), torch.Generator().manual_seed(seed)

    def rows(layer: Any, seen: Tensor, output: Tensor) -> Tensor:
        wanted = -(-ROWS * layer.weight[0].numel() // samples)
        return rows_of(layer, seen, output[:, :0], wanted, generator)

    return collected(model, {path: (path, rows) for path in paths}, batches, "measuring the inputs of convolutions")


def _behind_norm(model: nn.Module, path: str, norm: str) -> Tensor:
    """Return the weights of a convolution, scaled by its BatchNorm, `(outputs, channels, entries)`."""
    weight = get_module(model, path).get_parameter("weight").detach().double().cpu().flatten(2)
    if not norm:
        return weight
    behind: Any = get_module(model, norm)
    scale = behind.weight.detach().double() / (behind.running_var.double() + behind.eps).sqrt()
    scaled: Tensor = scale.cpu()[:, None, None] * weight
    return scaled
