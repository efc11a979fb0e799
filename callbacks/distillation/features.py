"""Hidden states of a pruned network, matched to those of the teacher after each block with removed units."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

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
        self.students = [_Output(get_module(student, present[kept.index(i)].path), True) for i in sorted(ends)]
        self.teachers = [_Output(get_module(teacher, dense.blocks[i].path), False) for i in sorted(ends)]

    def loss(self) -> Tensor:
        """Mean relative squared error over the matched blocks; the outputs read so far are forgotten."""
        pairs = [(s.take(), t.take()) for s, t in zip(self.students, self.teachers, strict=True)]
        return torch.stack([feature_loss(s, t) for s, t in pairs if s is not None and t is not None]).mean()

    def clear(self) -> None:
        """Forget outputs from outside training steps."""
        for output in (*self.students, *self.teachers):
            output.take()

    def detach(self) -> None:
        """Remove the hooks."""
        for output in (*self.students, *self.teachers):
            output.handle.remove()


class _Output:
    """Hook that keeps the first output of a block, with gradients or without, until the output is taken.

    Only the first, as `Tap` does with the whole network: a step may call the block more than once. Copies of a network
    do not copy the hook.
    """

    def __init__(self, block: nn.Module, gradients: bool) -> None:
        self.value: Tensor | None = None
        self.gradients = gradients
        self.handle = block.register_forward_hook(self)

    def __call__(self, block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.value is None and torch.is_grad_enabled() == self.gradients:
            self.value = output[0] if isinstance(output, tuple) else output

    def take(self) -> Tensor | None:
        """Return the kept output, and forget it."""
        value, self.value = self.value, None
        return value

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _ignore


def _ignore(*args: Any) -> None:
    """Replace the hook in a copied network."""
