"""The context that an importance of width is computed in: model, groups, calibration batches, loss and labels.

An importance of width is any callable `(context) -> {group name: (size,)}`, one number per unit. Units with low numbers
go first, units with high ones stay, whatever the role: as `protection` high ones stay, as `removal` (for Tolerance of
Difference, which weighs two importances) low ones propose what goes. There only the order within a group matters;
allocations that compare groups need numbers that are not negative, and comparable between groups.

It is called in evaluation mode and without gradients (use `torch.enable_grad` for them), and leaves the model as it
was: take gradients by `torch.autograd.grad`, or on a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from prunerecover.importance.context import Context, Loss
from prunerecover.plan.groups import Group

ClassLabels = Callable[[Any], Tensor]


@dataclass(frozen=True, kw_only=True)
class WidthContext(Context):
    """Groups whose units are to be scored.

    Attributes:
        groups: Of different names.
        labels: `labels(batch) -> (N,)` integer classes, for experts also `(N, T)`; None: those that the batches hold.
        directions: Projections per site for the U-Score; None: 128 for maps, 64 for tokens.
        per_class: Samples of each class that the U-Score uses, the first ones; None: all.
    """

    groups: Sequence[Group]
    labels: ClassLabels | None = None
    directions: int | None = None
    per_class: int | None = None

    def require_loss(self, name: str) -> Loss:
        """Return the loss.

        Args:
            name: Of the importance that needs it, for the message.

        Raises:
            ValueError: If there is none.
        """
        if self.loss is None:
            raise ValueError(
                "Expected a loss, loss(model, batch) -> scalar, for a score that needs gradients, but got none for "
                f"'{name}'. 'magnitude' and 'u_score' need none."
            )
        return self.loss


WidthImportance = Callable[[WidthContext], Mapping[str, Tensor]]
