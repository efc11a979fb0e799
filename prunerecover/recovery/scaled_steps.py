"""Optimizer steps at a share of the learning rates, hidden from the rest of the training, and the best share.

The horizon of `best_share` is short, and a short horizon prefers rates below the best of a long training (Wu 2018,
arXiv 1803.02021): a harmful rate is never chosen. Zimmer 2023 (arXiv 2111.00843) sets the start of a recovery by the
change of the weights instead: a measure of the damage to recover from, but no test of the user's rate.
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
    """Hooks to multiply the rates of optimizers during a step, until `detach`.

    Schedulers, checkpoints and the training step (perhaps the closure of an optimizer) see the user's rates: some
    schedulers compute the next rate from the present rate.

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
        """Restore the optimizers, also in the middle of a failed step."""
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
        module: Module with the weights.
        optimizer: Optimizer of the weights, in the present state.
        losses: Training losses, a function per step, each deterministic and on other samples; a function returns None
            to skip the step.
        before_step: Function to call between the backward pass and the step, for example to clip gradients.
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
    """Return the mean loss of the last steps; infinite if a loss is not finite, or every step was skipped."""
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
