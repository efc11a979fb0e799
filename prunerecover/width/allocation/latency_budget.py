"""Latency budgets: the budget of MACs that saves a share of the measured latency, by bisection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from prunerecover.display.progress import progress
from prunerecover.model.batches import ModelInputs
from prunerecover.plan.budget import Budget
from prunerecover.plan.edits import Edit
from prunerecover.surgery.saved_cost import DenseCost

STEPS = 6


def macs_for_latency(
    model: nn.Module, latency: float, edits_at: Callable[[Budget], Sequence[Edit]], batch: ModelInputs, seed: int = 0
) -> Budget:
    """Return the least budget of MACs that was tried and saves a share of the latency, on the model's device.

    Args:
        model: Unwrapped; it is not changed.
        latency: The share that has to go, in (0, 1).
        edits_at: Returns the edits of a budget; a ValueError says that structure does not allow it.
        batch: What latency is measured on.
        seed: Of the latency's bootstrap.

    Raises:
        ValueError: If no budget of MACs that was tried saves as much.
    """
    dense = DenseCost(model, "latency", batch, seed)
    low, high, most, found = 0.0, 0.99, 0.0, False
    with progress("measuring latency", STEPS) as advance:
        for _ in range(STEPS):
            advance()
            middle = (low + high) / 2
            try:
                edits = edits_at(Budget(macs=middle))
            except ValueError:
                high = middle
                continue
            saved = dense.removed_share(edits)
            found, most = found or saved >= latency, max(most, saved)
            low, high = (low, middle) if saved >= latency else (middle, high)
    if not found:
        raise ValueError(
            f"Expected a budget that the groups can meet, {latency:.1%} of the latency, but the most that was "
            f"saved is {most:.1%}. Lower the budget, or ignore fewer groups."
        )
    return Budget(macs=high)
