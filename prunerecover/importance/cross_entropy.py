"""The loss of the model without each unit, as the cross-entropy of labelled batches is for a classifier."""

from __future__ import annotations

import torch

from prunerecover.importance.context import DepthContext, UnitScores
from prunerecover.importance.losses import loss_of
from prunerecover.model.batches import as_inputs
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
            total, samples = 0.0, 0
            with temporarily_applied(model, edit, values), torch.enable_grad():
                for batch in context.batches:
                    n = as_inputs(batch).n_samples
                    total += n * float(loss_of(model, batch, loss).detach())
                    samples += n
            found[name] = total / samples
    return found
