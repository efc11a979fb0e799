"""All signals of width pruning by name, computed together: those that run the model share its passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from prunerecover.importance.context import Loss
from prunerecover.model.paths import unwrap
from prunerecover.plan.groups import Group
from prunerecover.width.groups.unit_slices import Scores
from prunerecover.width.signals.activations import Consumer, stream
from prunerecover.width.signals.data_free import magnitude, random
from prunerecover.width.signals.first_order import FisherDiagonal, GateTaylor, WeightTaylor
from prunerecover.width.signals.routing_share import RoutingShare
from prunerecover.width.signals.u_score import ClassLabels, merged, u_passes

SIGNALS = ("u_score", "r_score", "gate_taylor", "fisher", "routing", "magnitude", "random")
NEED_LOSS = ("r_score", "gate_taylor", "fisher")


def signals(
    model: nn.Module,
    groups: Sequence[Group],
    batches: Sequence[Any],
    names: Sequence[str],
    *,
    loss: Loss | None = None,
    labels: ClassLabels | None = None,
    directions: int | None = None,
    per_class: int | None = None,
    seed: int = 0,
) -> dict[str, Scores]:
    """Compute several signals with one forward (and backward) pass over the batches.

    Args:
        model: Judged in evaluation mode; bit-identical afterwards.
        groups: What is scored.
        batches: Calibration batches.
        names: Among `SIGNALS`.
        loss: `loss(model, batch) -> scalar`, a mean over the batch; for those in `NEED_LOSS`.
        labels: See `u_score`.
        directions: See `u_score`.
        per_class: See `u_score`.
        seed: Of everything random.

    Returns:
        By signal and group: `(size,)`, float64, on the CPU. U low means redundant, the others high means keep.

    Raises:
        ValueError: If a name is unknown, a loss is missing or a score is not finite; and see each signal.
    """
    for name in names:
        if name not in SIGNALS:
            raise ValueError(f"Expected signals among {', '.join(SIGNALS)}, but got '{name}'.")
    network = unwrap(model)
    projections = u_passes(groups, batches, labels, directions, seed, per_class) if "u_score" in names else []
    first_order = {name: _first_order(name, network, groups) for name in NEED_LOSS if name in names}
    shares = [RoutingShare(groups)] if "routing" in names else []
    together: list[Consumer] = [*projections[:1], *first_order.values(), *shares]
    if together:
        stream(network, groups, batches, together, loss)
    for consumer in projections[1:]:
        stream(network, groups, batches, [consumer])
    found = {name: first_order[name].scores() for name in first_order}
    if projections:
        found["u_score"] = merged(groups, projections)
    if shares:
        found["routing"] = shares[0].scores()
    if "magnitude" in names:
        found["magnitude"] = magnitude(network, groups)
    if "random" in names:
        found["random"] = random(groups, seed)
    for name in names:
        check_finite(found[name], name)
    return {name: found[name] for name in names}


def check_finite(scores: Scores, signal: str) -> None:
    """Raise ValueError if a score is NaN or infinite: sorting by it would choose at random."""
    wrong = [name for name, values in scores.items() if not values.isfinite().all()]
    if wrong:
        raise ValueError(
            f"Expected finite scores from '{signal}', but those of {', '.join(wrong[:3])} are not. "
            "Check the model's output on the calibration batches for NaN, and compute it in float32."
        )


def _first_order(name: str, model: nn.Module, groups: Sequence[Group]) -> WeightTaylor | GateTaylor:
    if name == "gate_taylor":
        return GateTaylor(groups)
    return WeightTaylor(model, groups) if name == "r_score" else FisherDiagonal(model, groups)
