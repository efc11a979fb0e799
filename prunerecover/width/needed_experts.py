"""Warning of a plan that leaves a layer fewer experts than share its work.

The number of experts that share the work is the effective number of scores: the squared sum over the sum of squares,
16 for 16 equal scores, 1 for a single positive score.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from torch import Tensor

from prunerecover.importance.measuring.unit_slices import Scores
from prunerecover.plan.groups import Group
from prunerecover.width.allocation.greedy_fill import Removed


def effective_number(scores: Tensor) -> float:
    """Return the effective number of scores `(units,)`, at least 0.

    >>> import torch
    >>> effective_number(torch.tensor([1.0, 1.0, 0.0, 2.0])), effective_number(torch.zeros(3))
    (2.6666666666666665, 0.0)
    """
    scores = scores.double()
    return float(scores.sum().square() / scores.square().sum().clamp(min=1e-300))


def warn_of_needed_experts(
    groups: Sequence[Group], removed: Removed, by: str, scores: Callable[[str], Sequence[Scores]]
) -> None:
    """Warn of layers that lose experts and keep fewer than the effective number of their scores.

    Args:
        groups: Groups of any kinds; without experts, nothing is scored.
        removed: Removed units by group name.
        by: Name of the importance, "routing" for groups of experts alone.
        scores: Function from the name of an importance to its scores.
    """
    kinds = {group.kind for group in groups}
    if "expert" not in kinds or (by == "routing" and len(kinds) > 1):
        return
    (found,), few = scores(by), []
    for group in groups:
        kept, needed = group.size - len(removed[group.name]), int(effective_number(found[group.name]))
        if group.kind == "expert" and kept < min(needed, group.size):
            few.append(f"{group.name} keeps {kept} of {group.size}, about {needed} share its work")
    if few:
        warnings.warn(
            f"Layers keep fewer experts than share their work, by {by}: {'; '.join(few[:3])}"
            f"{f'; and {len(few) - 3} more' if len(few) > 3 else ''}. Remove fewer experts, or train afterwards.",
            stacklevel=3,
        )
