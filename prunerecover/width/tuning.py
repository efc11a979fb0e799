"""Fit what weights take over from removed units, and tune it on the network's output.

Ridge regression makes what is read alike in every direction, layer by layer; the rest of the network reads some
directions and not others. From that solution on, Adam (Kingma and Ba, arXiv 1412.6980) minimises the output divergence
on the same samples, for all layers together, as distillation without labels. Only the coefficients of the prediction
are learnt, so that the plan holds what it held before, and the cost is the same. Of all epochs the one is kept whose
output is best on samples that may have been learnt from: steps that are too long are seen, and none may be kept. The
counterpart for units of depth is `calibration/tuning.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from prunerecover.calibration.kept_outputs import KeptOutputs
from prunerecover.display.progress import progress
from prunerecover.divergence.outputs import Outputs, compared, unpadded
from prunerecover.divergence.registry import output_divergence
from prunerecover.model.batches import ModelInputs, call, of_few_samples
from prunerecover.model.checks import is_differentiable
from prunerecover.model.evaluation import evaluating, ordinary_arithmetic, uncompiled
from prunerecover.plan.edits import Edit, Narrow
from prunerecover.width.compensation import fitted_tensors
from prunerecover.width.pruned_output import PrunedOutput
from prunerecover.width.taken_over import TakenOver, first_narrowed, numbers_in_memory, taken_over

EPOCHS, SAMPLES = 3, 32  # the latter per step at most
FEWEST = 32  # samples; with 8, outputs on others may diverge more than by least squares alone
MOST_NUMBERS = 1 << 30  # in single precision, 4 GiB


def fitted_and_tuned(
    edits: Sequence[Edit],
    tensors: Mapping[str, Tensor],
    batches: Sequence[ModelInputs],
    judge: PrunedOutput,
    since: int = 0,
) -> dict[str, Tensor]:
    """Return the tensors of edits, those of narrowed weights fitted by least squares and tuned on the output.

    Args:
        edits: In order; each names tensors as those before leave them.
        tensors: Of the edits before the first one that is fitted.
        batches: What is fitted to.
        judge: Compares outputs with the dense model's, and says which epoch is best. Its samples may be among
            `batches`; what it measures afterwards is too good then.
        since: The first edit whose tensors may be fitted; those before stay as they are.
    """
    first = first_narrowed(edits, since)
    narrowing = [edit for edit in edits[first:] if isinstance(edit, Narrow)]
    found = {**tensors, **fitted_tensors(judge.pruned(edits[:first], tensors), narrowing, batches)}
    return tuned_tensors(edits, found, batches, judge, first)


def tuned_tensors(
    edits: Sequence[Edit],
    tensors: Mapping[str, Tensor],
    batches: Sequence[ModelInputs],
    judge: PrunedOutput,
    since: int = 0,
) -> dict[str, Tensor]:
    """Return the tensors of edits, those of narrowed weights tuned so that the output diverges least.

    Nothing changes where there are too few samples, the output cannot be compared, memory has no room, or the model
    takes no gradients.

    Args:
        edits: See `fitted_and_tuned`.
        tensors: Of all edits.
        batches: What is learnt from.
        judge: Decides which epoch is best.
        since: See `fitted_and_tuned`.
    """
    model, given = judge.model, dict(tensors)
    enough = sum(batch.n_samples for batch in batches) >= FEWEST
    if not (enough and judge.comparable and is_differentiable(model)):
        return given
    network = judge.pruned(edits, given)
    if not 0 < numbers_in_memory(network, edits[since:], given) <= MOST_NUMBERS:
        return given
    learnt = taken_over(model, network, edits, given, since)
    best, kept = judge.divergence(edits, given), given
    with progress("tuning what weights take over", EPOCHS) as advance:
        for _ in _epochs(model, network, learnt, of_few_samples(batches, SAMPLES)):
            found = {**given, **{one.key: one.prediction() for one in learnt}}
            divergence = judge.divergence(edits, found)
            if divergence < best:
                best, kept = divergence, found
            advance()
    return kept


def _epochs(
    model: nn.Module, network: nn.Module, learnt: Sequence[TakenOver], batches: Sequence[ModelInputs]
) -> Iterator[None]:
    """Learn, and yield after each epoch; no more come once there are no gradients."""
    weights = [one.weight.requires_grad_() for one in learnt]
    optimizer = torch.optim.Adam([{"params": [one.coefficients], "lr": one.rate} for one in learnt])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(batches))
    dense = KeptOutputs(lambda number: _output(model, batches[number]))
    for _ in range(EPOCHS):
        with ordinary_arithmetic(), evaluating(model, network), uncompiled(recurrent=True):
            for number, batch in enumerate(batches):
                gradients = _gradients(network, batch, dense.of(number), weights)
                if not gradients:
                    return
                for one, gradient in zip(learnt, gradients, strict=True):
                    one.take_gradient(gradient)
                optimizer.step()
                scheduler.step()
                for one in learnt:
                    one.put_in_place()
        yield


def _gradients(network: nn.Module, batch: ModelInputs, dense: Outputs, weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return those of the divergence; none if the output has none, they are not finite, or the pass fails."""
    try:
        with torch.enable_grad():
            loss = output_divergence(dense, _output(network, batch))
        gradients = torch.autograd.grad(loss, weights, materialize_grads=True) if loss.requires_grad else ()
    except torch.OutOfMemoryError:
        warnings.warn(
            "There is no memory to tune what weights take over from removed units: it stays as least squares say. "
            "Pass smaller batches.",
            stacklevel=2,
        )
        return ()
    except Exception:  # an operation in place, one without a backward pass, another shape: least squares stay
        return ()
    return gradients if all(bool(gradient.isfinite().all()) for gradient in gradients) else ()


def _output(model: nn.Module, batch: ModelInputs) -> Outputs:
    return unpadded(compared(call(model, batch)), batch)
