"""Hidden states of a pruned network, matched to those of the teacher after each block with removed units."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.callbacks.distillation.student import FirstCall
from prunerecover.families.describe import describe
from prunerecover.model.paths import get_module
from prunerecover.plan.plan import Plan
from prunerecover.plan.removed_units import removed_units
from prunerecover.recovery.distillation import feature_loss


class FeatureMatcher:
    """Reader of the outputs of corresponding blocks of student and teacher.

    Args:
        student: Pruned network.
        teacher: Dense network.
        plan: Plan of the removed units. A removed block is matched at the block before.
    """

    def __init__(self, student: nn.Module, teacher: nn.Module, plan: Plan) -> None:
        dense = describe(teacher)
        units = removed_units(plan.edits)
        gone = {dense.block_of(u.name) for u in units if u.kind == "block"}
        kept = [i for i in range(len(dense.blocks)) if i not in gone]
        touched = {dense.block_of(u.name) for u in units}
        ends = {max((k for k in kept if k <= i), default=kept[0]) for i in touched}
        present = describe(student).blocks
        self.students = [FirstCall(get_module(student, present[kept.index(i)].path)) for i in sorted(ends)]
        self.teachers = [FirstCall(get_module(teacher, dense.blocks[i].path), gradients=False) for i in sorted(ends)]

    def loss(self) -> Tensor:
        """Mean relative squared error over the matched blocks; the outputs read so far are forgotten."""
        pairs = [(_hidden(s.take()), _hidden(t.take())) for s, t in zip(self.students, self.teachers, strict=True)]
        return torch.stack([feature_loss(s, t) for s, t in pairs if s is not None and t is not None]).mean()

    def clear(self) -> None:
        """Forget outputs from outside training steps."""
        for output in (*self.students, *self.teachers):
            output.take()

    def detach(self) -> None:
        """Remove the hooks."""
        for output in (*self.students, *self.teachers):
            output.detach()


def _hidden(call: tuple[Any, Any] | None) -> Tensor | None:
    """Return the hidden states of a block's call."""
    output = None if call is None else call[1]
    return output[0] if isinstance(output, tuple) else output
