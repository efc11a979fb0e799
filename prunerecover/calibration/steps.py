"""Samples of each step of learning, with the outputs of the dense network to learn towards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, prod

import torch
from torch import nn

from prunerecover.divergence.kept_outputs import KeptOutputs
from prunerecover.divergence.outputs import Outputs, compared, tensors_of, unpadded
from prunerecover.model.batches import ModelInputs, call, of_few_samples
from prunerecover.model.evaluation import evaluating, uncompiled
from prunerecover.store.ranks import PARTS

STEPS = 8  # in an epoch, at least
STEP_SAMPLES = 4, 16  # in a step: as many as leave so many steps, within these bounds
WANTED_OUTPUTS = 2560  # such as the logits of an image each: with fewer, further samples are taken
FEWEST_SAMPLES, FEWEST_OUTPUTS = 32, 1024  # with fewer of both, new outputs may diverge more than by least squares


@dataclass(frozen=True, eq=False)
class Steps:
    """Samples of each step of an epoch.

    Attributes:
        batches: Samples of each step.
        dense: Compared outputs of the dense network, by number of the step times `PARTS`, plus number of the part.
        first: Number of the first steps, on the samples that values were fitted on.
        outputs: Number of outputs of a sample.
    """

    batches: Sequence[ModelInputs]
    dense: KeptOutputs
    first: int
    outputs: float

    def parts(self, number: int) -> list[ModelInputs]:
        """Return the samples of a step in parts, whose gradients are computed apart and added."""
        return _parts(self.batches[number])

    @property
    def enough(self) -> bool:
        """Whether there are enough samples, or outputs, to learn from."""
        samples = sum(batch.n_samples for batch in self.batches)
        return samples >= FEWEST_SAMPLES or samples * self.outputs >= FEWEST_OUTPUTS


def steps_of(
    model: nn.Module,
    batches: Sequence[ModelInputs],
    further: Callable[[int], Sequence[ModelInputs]] = lambda _: (),
    most: int = STEP_SAMPLES[1],
) -> Steps:
    """Return the steps of an epoch: first the samples that values were fitted on, then further samples.

    Further samples are taken where a sample has few outputs, as a classifier's logits; the tokens of texts, or the
    positions of a map, are outputs enough.

    Args:
        model: Dense network, with outputs that can be compared.
        batches: Samples that values were fitted on.
        further: Function from a number of samples to about so many further samples.
        most: Samples in a step at most.
    """
    samples = sum(batch.n_samples for batch in batches)
    few = min(max(STEP_SAMPLES[0], samples // STEPS), most)
    first = of_few_samples(batches, few)
    outputs = rows_of(dense_outputs(model, first[:1]).of(0)) / _parts(first[0])[0].n_samples
    more = further(ceil(WANTED_OUTPUTS / outputs - samples)) if 0 < samples * outputs < WANTED_OUTPUTS else ()
    steps = [*first, *of_few_samples(more, few)]
    return Steps(steps, dense_outputs(model, steps), len(first), outputs)


def dense_outputs(model: nn.Module, steps: Sequence[ModelInputs]) -> KeptOutputs:
    """Return the compared outputs of the dense network on the samples of each part of each step."""

    def output(number: int) -> Outputs:
        with evaluating(model), uncompiled(recurrent=True):
            return judged_output(model, _parts(steps[number // PARTS])[number % PARTS])

    return KeptOutputs(output)


def judged_output(network: nn.Module, batch: ModelInputs) -> Outputs:
    """Return the compared part of a network's output, without padding."""
    return unpadded(compared(call(network, batch)), batch)


def _parts(batch: ModelInputs) -> list[ModelInputs]:
    if batch.undivided():
        return [batch]
    return [batch.select(numbers) for numbers in torch.arange(batch.n_samples).tensor_split(PARTS) if len(numbers)]


def rows_of(outputs: Outputs) -> int:
    """Return the number of rows of the outputs, such as the logits of each token, or of single numbers."""
    return sum(prod(one.shape[: max(1, one.ndim - 1)]) for one in tensors_of(outputs).values())
