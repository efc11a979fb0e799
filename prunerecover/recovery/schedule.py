"""Learning rate after a surgery: a warm-up, times a decay to zero.

Renda 2020 (arXiv 2003.02389) rewinds the rate, Le and Hua 2021 (arXiv 2105.03193) restart the rate with a warm-up, and
Zimmer 2023 (arXiv 2111.00843) lets the rate decay linearly to zero. Zimmer's start of the decay, in proportion to the
relative change of the weights, is not done: rates are shares of the user's rate, and `scaled_steps.best_share` tests
the share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from prunerecover.model.arguments import check_number, check_whole

Shape = Literal["linear", "cosine"]
WARMUP, DECAY = 0.5, 1.0


@dataclass(frozen=True)
class RecoveryCurve:
    """Factor of a learning rate at each step of a recovery.

    The decay falls from 1 to zero after the last step, times the warm-up, a rise up to 1: with a warm-up over half of
    the steps and a linear decay over all, the highest factor is one half. A rate too high for a damaged network does
    less harm than in a warm-up followed by the decay.

    Args:
        warmup: Steps of the warm-up (a whole number), or their share of all steps (a number below 1); at most all of
            them.
        shape: Shape of the decay.
        decay: Share of the steps, the last ones, in which the rate falls; 0: no decay.

    Raises:
        TypeError: If `warmup` or `decay` is no number.
        ValueError: If an argument is out of range.

    >>> [RecoveryCurve(warmup=2).factor(step, 4) for step in range(4)]
    [0.5, 0.75, 0.5, 0.25]
    """

    warmup: int | float = WARMUP
    shape: Shape = "linear"
    decay: float = DECAY

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_number("warmup", self.warmup)
        if not self.warmup >= 0 or (isinstance(self.warmup, float) and not self.warmup < 1):
            raise ValueError(
                f"Expected argument warmup to be a whole number of steps or a share below 1, but got {self.warmup!r}. "
                "For example warmup=60, or warmup=0.25."
            )
        if self.shape not in ("linear", "cosine"):
            raise ValueError(f"Expected argument shape to be 'linear' or 'cosine', but got {self.shape!r}.")
        check_number("decay", self.decay)
        if not 0 <= self.decay <= 1:
            raise ValueError(
                f"Expected argument decay to be a share of the steps between 0 and 1, but got {self.decay!r}. For "
                "example decay=0.3: the rate falls in the last 30% of them."
            )

    def factor(self, step: int, steps: int) -> float:
        """Return the factor of a step; after the last step zero, or 1 without a decay.

        Args:
            step: Number of the step, from 0.
            steps: Steps of the whole recovery.
        """
        if step >= steps:
            return 0.0 if self.decay else 1.0
        warmup = self.warmup if isinstance(self.warmup, int) else round(self.warmup * steps)
        risen = min(1.0, (step + 1) / max(1, min(warmup, steps)))
        left = min(1.0, (1 - step / steps) / self.decay) if self.decay else 1.0
        return risen * (left if self.shape == "linear" else (1 - math.cos(math.pi * left)) / 2)


def recovery_schedule(
    optimizer: Optimizer, steps: int, warmup: int | float = WARMUP, shape: Shape = "linear", decay: float = DECAY
) -> LambdaLR:
    """Return a scheduler for the training after a surgery: a warm-up, times a decay to zero.

    For loops without Lightning, whose `RecoverySchedule` also tests the rates: call `step()` of the scheduler after
    each
    step of the optimizer, or pass `optimizers=(optimizer, recovery_schedule(optimizer, steps))` to the Trainer of
    transformers. Make a new one after each surgery, and use no second scheduler.

    Args:
        optimizer: Optimizer of the pruned model. The present rates are the highest; where a scheduler has changed the
            rates, the initial rates (`initial_lr`).
        steps: Steps of the optimizer until the next surgery, or the end.
        warmup: Steps of the warm-up (a whole number), or their share of `steps` (a number below 1); at most all of
            them.
        shape: Shape of the decay, "linear" or "cosine".
        decay: Share of the steps, the last ones, in which the rate falls; 0: no decay.

    Raises:
        TypeError: If `steps`, `warmup` or `decay` is no number.
        ValueError: If an argument is out of range.

    >>> import torch
    >>> optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=1.0)
    >>> recovery_schedule(optimizer, steps=100, warmup=10).get_last_lr()
    [0.1]
    """
    check_whole("steps", steps, 1)
    return LambdaLR(optimizer, partial(RecoveryCurve(warmup, shape, decay).factor, steps=steps))
