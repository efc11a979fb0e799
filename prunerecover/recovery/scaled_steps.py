"""Steps of optimizers at a share of their learning rates, which nobody else sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer


class ScaledSteps:
    """Multiplies the rates of optimizers while they step, until `detach`.

    Schedulers, checkpoints and the training step, which an optimizer may run as its closure, find the rates as the user
    set them: some schedulers compute the next rate from the present one.

    Args:
        optimizers: Optimizers with a rate in each group.
        factor: Share of the rates, the same in all groups.
    """

    def __init__(self, optimizers: Iterable[Optimizer], factor: float) -> None:
        self.factor = factor
        self._own: dict[Optimizer, list[Any]] = {}
        self._depth: Counter[Optimizer] = Counter()  # torch calls hooks again where a subclass calls super().step()
        hooks = [(o.register_step_pre_hook(self._before), o.register_step_post_hook(self._after)) for o in optimizers]
        self._handles = [handle for pair in hooks for handle in pair]

    def detach(self) -> None:
        """Leave the optimizers as they were, also in the middle of a step that has failed."""
        for handle in self._handles:
            handle.remove()
        for optimizer in list(self._own):
            self._restore(optimizer)

    def _scale(self, optimizer: Optimizer) -> None:
        self._own[optimizer] = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * self.factor

    def _restore(self, optimizer: Optimizer) -> None:
        for group, rate in zip(optimizer.param_groups, self._own.pop(optimizer), strict=True):
            group["lr"] = rate

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        self._depth[optimizer] += 1
        if self._depth[optimizer] > 1:
            return None
        self._scale(optimizer)
        closure = kwargs.get("closure")
        if closure is None:
            return None

        def training_step() -> Any:
            self._restore(optimizer)
            loss = closure()
            self._scale(optimizer)
            return loss

        return args, {**kwargs, "closure": training_step}

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._depth[optimizer] -= 1
        if not self._depth[optimizer]:
            self._restore(optimizer)
