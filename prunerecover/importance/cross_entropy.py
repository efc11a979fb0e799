"""The loss of the model without each unit, as the cross-entropy of labelled batches is for a classifier."""

from __future__ import annotations

from prunerecover.importance.context import DepthContext, UnitScores
from prunerecover.importance.losses import mean_loss
from prunerecover.model.evaluation import evaluating
from prunerecover.model.paths import unwrap
from prunerecover.plan.edits import Replace
from prunerecover.surgery.apply_edits import temporarily_applied


def cross_entropy(context: DepthContext) -> UnitScores:
    """Return the loss with each unit replaced as the plan would replace it, mean over the samples. Higher means keep.

    Raises:
        ValueError: If there is no loss.
    """
    model, loss = unwrap(context.model), context.require_loss("cross_entropy")
    found: UnitScores = {}
    with evaluating(model):
        for name, choice in context.calibrator.score(context.units).items():
            values = {f"e0.{key}": value for key, value in choice.candidate.values.items()}
            edit = choice.candidate.edit
            if isinstance(edit, Replace):
                edit = edit.model_copy(update={"tensors": tuple(values)})
            with temporarily_applied(model, edit, values):
                found[name] = mean_loss(model, context.batches, loss)
    return found
