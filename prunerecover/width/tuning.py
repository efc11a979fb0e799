"""Tune what weights take over from removed units on the network's output.

Ridge regression makes what is read alike in every direction, layer by layer; the rest of the network reads some
directions and not others. From that solution on, Adam (Kingma and Ba, arXiv 1412.6980) minimises the output divergence
on the samples that were fitted to, for all layers together, as distillation without labels. Only the coefficients of
the prediction are learnt, so that the plan holds what it held before, and the cost is the same. Of all epochs the one
is kept that is best on held-out samples; that may be none. The counterpart for units of depth is
`calibration/tuning.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from prunerecover.calibration.divergence import output_divergence
from prunerecover.calibration.hidden_states import MOST_KEPT
from prunerecover.display.progress import progress
from prunerecover.model.batches import CalibrationSet, ModelInputs, call, predictions_of, without_padding
from prunerecover.model.checks import is_differentiable
from prunerecover.model.evaluation import evaluating, ordinary_arithmetic, uncompiled
from prunerecover.plan.edits import Edit
from prunerecover.width.narrowed_output import NarrowedOutput
from prunerecover.width.taken_over import TakenOver, taken_over

EPOCHS, SAMPLES = 3, 32  # the latter per step at most
MOST_LEARNT = 1 << 28  # coefficients; gradients and Adam's averages take three times as much memory again


def tuned(
    edits: Sequence[Edit], tensors: Mapping[str, Tensor], samples: CalibrationSet, judge: NarrowedOutput
) -> dict[str, Tensor]:
    """Return the tensors of edits, those of narrowed weights tuned so that the output diverges least.

    Nothing changes where there are too few samples, the output cannot be compared, or the model takes no gradients.

    Args:
        edits: In order; each names tensors as those before leave them.
        tensors: Fitted to the samples of `fit` alone: held-out ones could not judge otherwise.
        samples: Those of `fit` are learnt from.
        judge: Compares outputs with the dense model's on held-out samples.
    """
    model, given = judge.model, dict(tensors)
    if not (given and samples.enough and judge.comparable and is_differentiable(model)):
        return given
    network = judge.pruned(edits, given)
    learnt = taken_over(model, network, edits, given)
    if not learnt or sum(one.coefficients.numel() for one in learnt) > MOST_LEARNT:
        return given
    best, kept = judge.divergence(edits, given), given
    with progress("tuning what weights take over", EPOCHS) as advance:
        for _ in _epochs(model, network, learnt, _of_few_samples(samples.fit)):
            found = {**given, **{one.key: one.prediction() for one in learnt}}
            divergence = judge.divergence(edits, found)
            if divergence < best:
                best, kept = divergence, found
            advance()
    return kept


def _epochs(
    model: nn.Module, network: nn.Module, learnt: Sequence[TakenOver], batches: Sequence[ModelInputs]
) -> Iterator[None]:
    """Learn, and yield after each epoch; none comes if the output takes no gradients."""
    weights = [one.weight for one in learnt]
    optimizer = torch.optim.Adam([{"params": [one.coefficients], "lr": one.rate} for one in learnt])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(batches))
    dense = _dense_outputs(model, batches)
    for _ in range(EPOCHS):
        with ordinary_arithmetic(), evaluating(model, network), uncompiled(recurrent=True):
            for number, batch in enumerate(batches):
                with torch.enable_grad():
                    output = without_padding(predictions_of(call(network, batch)), batch)
                    loss = output_divergence(dense(number), output)
                if not loss.requires_grad:
                    return
                gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
                for one, gradient in zip(learnt, gradients, strict=True):
                    one.differentiate(gradient)
                optimizer.step()
                scheduler.step()
                for one in learnt:
                    one.put_in_place()
        yield


def _of_few_samples(batches: Sequence[ModelInputs]) -> list[ModelInputs]:
    """Return the same samples in batches that make for several steps per epoch."""
    return [batch.select(chosen) for batch in batches for chosen in torch.split(torch.arange(batch.n_samples), SAMPLES)]


def _dense_outputs(model: nn.Module, batches: Sequence[ModelInputs]) -> Callable[[int], Tensor]:
    """Return what gives the dense output on a batch, padding left out; computed anew where there was no room for it."""
    known: dict[int, Tensor] = {}

    @torch.no_grad()
    def of(number: int) -> Tensor:
        if number in known:
            return known[number]
        output = without_padding(predictions_of(call(model, batches[number])), batches[number])
        if sum(other.nbytes for other in known.values()) + output.nbytes <= MOST_KEPT:
            known[number] = output
        return output

    return of
