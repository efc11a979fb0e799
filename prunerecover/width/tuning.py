"""Refitting of weights for removed units by least squares, and tuning on the network's output.

Ridge regression is the start of `calibration.learning` on the same samples. Only the coefficients of the prediction are
learnt: the plan holds the same tensors, and the cost is unchanged. The best epoch is the best on samples perhaps used
for learning, too: too long steps show there, and perhaps no epoch is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from prunerecover.calibration.learning import tuned_on_output
from prunerecover.calibration.samples import CalibrationSet
from prunerecover.calibration.steps import steps_of
from prunerecover.model.checks import is_differentiable
from prunerecover.model.evaluation import ordinary_arithmetic
from prunerecover.plan.edits import Edit, Narrow
from prunerecover.session.pruned_output import PrunedOutput
from prunerecover.width.compensation import fitted_tensors
from prunerecover.width.taken_over import first_narrowed, numbers_in_memory, taken_over

SAMPLES = 32  # in a step, at most
MOST_NUMBERS = 1 << 30  # in single precision, 4 GiB


def fitted_and_tuned(
    edits: Sequence[Edit],
    tensors: Mapping[str, Tensor],
    samples: CalibrationSet,
    judge: PrunedOutput,
    since: int = 0,
) -> dict[str, Tensor]:
    """Return the tensors of edits, with narrowed weights fitted by least squares and tuned on the output.

    Args:
        edits: Edits in order; tensors are named as after the earlier edits.
        tensors: Tensors of the edits before the first fitted edit.
        samples: Samples; all of them are fitted on.
        judge: Comparison of outputs with the dense model's, which chooses the best epoch. Its samples may be among
            `samples`; the divergence measured afterwards is too small then.
        since: Number of the first edit with fitted tensors; earlier tensors stay unchanged.
    """
    first = first_narrowed(edits, since)
    narrowing = [edit for edit in edits[first:] if isinstance(edit, Narrow)]
    found = {**tensors, **fitted_tensors(judge.pruned(edits[:first], tensors), narrowing, samples.whole)}
    return tuned_tensors(edits, found, samples, judge, first)


@ordinary_arithmetic()
def tuned_tensors(
    edits: Sequence[Edit],
    tensors: Mapping[str, Tensor],
    samples: CalibrationSet,
    judge: PrunedOutput,
    since: int = 0,
) -> dict[str, Tensor]:
    """Return the tensors of edits, with narrowed weights tuned for the least divergence of the output.

    The tensors stay unchanged if there are too few samples, the output cannot be compared, memory has no room, or the
    model takes no gradients.

    Args:
        edits: Edits, as in `fitted_and_tuned`.
        tensors: Tensors of all edits.
        samples: Samples for learning.
        judge: Comparison of outputs, which chooses the best epoch.
        since: Number of the first edit with fitted tensors, as in `fitted_and_tuned`.
    """
    model, given = judge.model, dict(tensors)
    if not (judge.comparable and is_differentiable(model)):
        return given
    network = judge.pruned(edits, given)
    if not 0 < numbers_in_memory(network, edits[since:], given) <= MOST_NUMBERS:
        return given
    steps = steps_of(model, samples.whole, samples.further, SAMPLES)
    if not steps.enough:
        return given
    learnt = taken_over(model, network, edits, given, since)
    for one in learnt:
        one.source.requires_grad_()

    def divergence() -> float:
        return judge.divergence(edits, {**given, **{one.key: one.prediction() for one in learnt}})

    _, found = tuned_on_output(network, learnt, steps, divergence, what="what weights take over")
    return given | {one.key: one.prediction(value) for one, value in zip(learnt, found, strict=False)}
