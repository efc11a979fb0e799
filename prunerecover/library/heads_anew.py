"""Smaller heads of a plan, fitted to a network with new weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.library.head_sizes import smaller_heads
from prunerecover.model.batches import ModelInputs, call
from prunerecover.model.hooks import first_tensor, removed_after
from prunerecover.model.paths import get_module, parent_path
from prunerecover.plan.edits import Narrow
from prunerecover.plan.groups import Group
from prunerecover.width.groups.discovery import find_groups
from prunerecover.width.heads.layout import HeadLayout


def heads_anew(network: nn.Module, narrowed: Sequence[Narrow], samples: Sequence[ModelInputs]) -> dict[str, Tensor]:
    """Return the weights of smaller heads, by path.

    Args:
        network: Network in evaluation mode, with heads at their full size.
        narrowed: Edits of kind "head_dim".
        samples: Calibration samples on the network's device.

    Raises:
        ValueError: If an edit names heads of fixed size in the network.
    """
    one = samples[0].select(torch.tensor([0]))
    by_name = {group.name: group for group in find_groups(network, one, ("head_dim",)).groups}
    missing = [edit.unit for edit in narrowed if edit.unit not in by_name or by_name[edit.unit].size != edit.of]
    if missing:
        raise ValueError(
            f"Expected heads of '{missing[0]}' that can get smaller once the edits before are done, but there are "
            "none. Apply the plan with the tensors that it was saved with, or plan anew for this model."
        )
    moments = second_moments(network, [by_name[edit.unit] for edit in narrowed], samples)
    values: dict[str, Tensor] = {}
    for edit in narrowed:
        group = by_name[edit.unit]
        heads = range(HeadLayout.of(group).heads)
        values |= smaller_heads(group, network, len(edit.keep), heads, *moments[group.name]).values
    return values


def second_moments(
    network: nn.Module, groups: Sequence[Group], samples: Sequence[ModelInputs]
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return second moments of the inputs of attentions and of their output projections, by group.

    Args:
        network: Network in evaluation mode.
        groups: Groups of kind "head_dim".
        samples: Calibration samples on the network's device.

    Returns:
        Sums over all tokens, each with a one appended, in double precision on the CPU: the arguments of
        `smaller_heads`.
    """
    sums: dict[tuple[str, bool], Tensor] = {}

    def adding(key: tuple[str, bool]) -> Callable[..., None]:
        def add(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            rows = first_tensor(args, kwargs).flatten(0, -2).float()
            rows = torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
            sums[key] = sums.get(key, torch.zeros(())) + (rows.mT @ rows).cpu().double()

        return add

    handles = []
    for group in groups:
        layout = HeadLayout.of(group)
        for reads, part in enumerate((layout.weights[0], layout.output)):
            module = get_module(network, parent_path(part.tensor))
            handles.append(module.register_forward_pre_hook(adding((group.name, bool(reads))), with_kwargs=True))
    with removed_after(*handles), torch.no_grad():
        for inputs in samples:
            call(network, inputs)
    return {group.name: (sums[group.name, False], sums[group.name, True]) for group in groups}
