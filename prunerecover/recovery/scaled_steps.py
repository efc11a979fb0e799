"""Steps of optimizers at a share of their learning rates, which nobody else sees, and the share that is best.

A horizon as short as that of `best_share` prefers rates below the best for a long training (Wu 2018, arXiv 1803.02021),
and so finds none that does harm. Zimmer 2023 (arXiv 2111.00843) sets the start of a recovery by the change of the
weights instead, which says how much there is to recover, and nothing about the rate that a user has.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

STEPS, JUDGED, LOWEST = 16, 4, 1 / 16


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


def best_share(
    module: nn.Module,
    optimizer: Optimizer,
    losses: Sequence[Callable[[], Tensor | None]],
    before_step: Callable[[], None] = lambda: None,
) -> float:
    """Return the share of the rates with the lowest loss after a few steps: 1, 1/2, 1/4, 1/8 or 1/16.

    Weights, buffers and the optimizer are bit-identical afterwards; gradients are gone. Random states are not kept.

    Args:
        module: Holds the weights.
        optimizer: Of them, as it is now.
        losses: Training losses, one per step, each of other samples and the same whenever it is called; None where a
            step is left out.
        before_step: Called between the backward pass and the step, for example to clip gradients.
    """
    best, lowest, share = 1.0, math.inf, 1.0
    while share >= LOWEST:
        found = _loss_at(share, module, optimizer, losses, before_step)
        if found >= lowest < math.inf:
            break
        best, lowest, share = share, found, share / 2
    return best


def _loss_at(
    share: float,
    module: nn.Module,
    optimizer: Optimizer,
    losses: Sequence[Callable[[], Tensor | None]],
    before_step: Callable[[], None],
) -> float:
    """Return the mean loss of the last steps; infinite if one is not finite, or all of them were left out."""
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    tensors = [(tensor, tensor.detach().clone()) for tensor in (*trained, *module.buffers())]
    state = {parameter: copy.deepcopy(own) for parameter, own in optimizer.state.items()}
    scaled, found = ScaledSteps([optimizer], share), list[float | None]()

    def closure(loss_of: Callable[[], Tensor | None]) -> Tensor | None:
        optimizer.zero_grad()
        loss = loss_of()
        seen.append(None if loss is None else loss.item())
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
            before_step()
        return loss

    try:
        for loss_of in losses:
            seen = list[float | None]()
            optimizer.step(partial(closure, loss_of))  # type: ignore[arg-type]
            found.append(seen[0])  # before the step
            if seen[0] is not None and not math.isfinite(seen[0]):
                return math.inf
    finally:
        scaled.detach()
        optimizer.zero_grad()
        optimizer.state.clear()
        optimizer.state.update(state)
        with torch.no_grad():
            for tensor, value in tensors:
                tensor.copy_(value)
    judged = [loss for loss in found[-JUDGED:] if loss is not None]
    return sum(judged) / len(judged) if judged else math.inf
