"""Three trials, and their losses."""

from __future__ import annotations

import pytest
from cases.trials import by_hand, plan_of, seeded

from prunerecover import DistillRecover
from prunerecover.boundary.search import Trial


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    """Of attentions, activations and both."""
    plans = (plan_of(attention=2), plan_of(activation=2), plan_of(attention=1, activation=1))
    return [Trial(plan, seed) for seed, plan in enumerate(plans)]


@pytest.fixture(scope="module")
def losses(trials: list[Trial]) -> list[float]:
    """Return the logged losses of `trials` run without a TrialRunner."""
    return [float(by_hand(seeded(), t, DistillRecover(target="net")).callback_metrics["val_loss"]) for t in trials]
