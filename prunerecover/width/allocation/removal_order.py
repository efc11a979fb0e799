"""Order of removal of the units of a group by their scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.plan.groups import Group


def removal_order(group: Group, scores: Tensor) -> Tensor:
    """Return the numbers of all units, lowest score first; strata take turns, to give up equally many units.

    >>> removal_order(Group("moe", "expert", 4, (), multiple=2, strata=2), torch.tensor([0.0, 1.0, 3.0, 2.0]))
    tensor([0, 3, 1, 2])
    """
    within = scores.view(group.strata, -1).argsort(dim=1, stable=True)
    starts = torch.arange(0, group.size, group.size // group.strata)
    return (within + starts[:, None]).T.flatten()


def removal_positions(groups: Sequence[Group], scores: Scores) -> Scores:
    """Return, by group, each unit's position in the order of removal, a score without turns of strata.

    >>> moe = Group("moe", "expert", 4, (), multiple=2, strata=2)
    >>> removal_positions([moe], {"moe": torch.tensor([0.0, 1.0, 3.0, 2.0])})
    {'moe': tensor([0, 2, 3, 1])}
    """
    return {group.name: removal_order(group, scores[group.name]).argsort() for group in groups}
