"""Tuning of fitted replacements in supported families on the network's output; see `calibration.learning`.

The best epoch on held-out samples counts, or none if clearly worse there than the fitted values. Units and forms were
chosen on the same samples, so the divergence favours the fitted values a little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.calibration.candidates import Candidate, Choice
from prunerecover.calibration.held_out import HeldOut
from prunerecover.calibration.hidden_states import DenseOutputs, Hidden, moved_on
from prunerecover.calibration.in_place import first_changed, in_place
from prunerecover.calibration.learning import EPOCHS, SAMPLES, WORSE, Held, best_epoch
from prunerecover.divergence.outputs import compared, unpadded
from prunerecover.divergence.registry import output_divergence
from prunerecover.families.layout import Layout
from prunerecover.model.batches import CalibrationSet, ModelInputs, of_few_samples
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.checks import is_differentiable
from prunerecover.model.hooks import removed_after
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Replace

MAP = 0.17  # rate of a folded map, divided by the width: each output sums as many steps as there are inputs


@dataclass(frozen=True)
class _Lesson:
    """Data to learn from, and to judge by.

    Attributes:
        runner: Runner of the model with all replacements in place.
        dense: Outputs on the batches.
        batches: Batches to learn from, a step each.
        held_out: Judges.
        start: First changed block.
        states: Hidden states before the block, on the batches and on held-out samples.
    """

    runner: BlockRunner
    dense: DenseOutputs
    batches: Sequence[ModelInputs]
    held_out: HeldOut
    start: int
    states: tuple[Hidden, Hidden]

    def divergence(self) -> float:
        """Return the output divergence on held-out samples."""
        return self.held_out.divergence(self.start, self.states[1])

    def gradients(self, number: int, learnt: Sequence[Held]) -> tuple[Tensor, ...]:
        """Return the gradients of the divergence on a batch."""
        batch = self.batches[number]
        with torch.enable_grad():
            output = unpadded(self.runner.finish(batch, self.start, self.states[0][number], compared), batch)
            loss = output_divergence(self.dense.of(number), output)
            return torch.autograd.grad(loss, [one.source for one in learnt], materialize_grads=True)


def tuned(
    runner: BlockRunner,
    dense: BlockRunner,
    layout: Layout,
    samples: CalibrationSet,
    held_out: HeldOut,
    choices: Sequence[Choice],
) -> list[Choice]:
    """Return choices with tuned values, the last choice with the divergence of all together.

    Choices stay the same if no values were fitted, or the model has no gradients.

    Args:
        runner: Runner of the model, in evaluation mode. Weights receive gradients.
        dense: Runner of the dense model.
        layout: Layout of the dense model.
        samples: Calibration samples; the `fit` samples serve for learning.
        held_out: Held-out samples to judge by.
        choices: All choices of a plan.
    """
    places = [i for i, choice in enumerate(choices) if choice.candidate.values]
    if not places or not is_differentiable(runner.model):
        return list(choices)
    samples = replace(samples, fit=tuple(of_few_samples(samples.fit, SAMPLES)))
    with ExitStack() as stack:
        for choice in choices:
            stack.enter_context(in_place(runner, layout, _without_map(choice.candidate)))
        start = min(first_changed(layout, choices[i].candidate) for i in places)
        states = _entering(runner, start, samples.fit), _entering(runner, start, samples.held_out)
        steps = EPOCHS * len(samples.fit)
        learnt = {i: _learnable(runner.model, layout, choices[i].candidate, steps) for i in places}
        for i, own in learnt.items():
            values = {name: one.value for name, one in own.items()}
            stack.enter_context(_folded(runner.model, choices[i].candidate, values))
        lesson = _Lesson(runner, DenseOutputs(dense, samples.fit), samples.fit, held_out, start, states)
        every = [one for own in learnt.values() for one in own.values()]
        divergence, found = best_epoch(
            every,
            EPOCHS,
            len(samples.fit),
            lambda number: lesson.gradients(number, every),
            lesson.divergence,
            worse=WORSE,
        )
    better = [*choices[:-1], replace(choices[-1], divergence=divergence)]
    kept = iter(found)
    for i, own in learnt.items() if found else ():
        candidate = choices[i].candidate
        values = {name: next(kept).to(candidate.values[name]) for name in own}
        better[i] = replace(better[i], candidate=replace(candidate, values=values))
    return better


def _entering(runner: BlockRunner, start: int, batches: Sequence[Any]) -> Hidden:
    nothing: Hidden = [None] * len(batches)
    return moved_on(runner, batches, 0, start, nothing, [])


def _learnable(model: nn.Module, layout: Layout, candidate: Candidate, steps: int) -> dict[str, Held]:
    """Return the values to learn of a candidate in the model, except for a map, by name."""
    values = candidate.values
    if candidate.fold is not None:
        rate = MAP / max((value.shape[-1] for value in values.values() if value.ndim > 1), default=1)
        return {n: Held(value.detach().float().clone().requires_grad_(), rate) for n, value in values.items()}
    module = get_module(model, _path_of(layout, candidate))
    return {name: Held.of(module, name, value, steps) for name, value in values.items()}


def _path_of(layout: Layout, candidate: Candidate) -> str:
    """Return the path of the module with a candidate's values."""
    edit = candidate.edit
    assert isinstance(edit, Replace)
    forward = layout.blocks[layout.block_of(edit.unit)].feed_forward
    whole = edit.kind == "activation" and edit.leaves == "affine"
    return forward.first if whole and forward is not None else edit.unit


@contextmanager
def _folded(model: nn.Module, candidate: Candidate, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Apply a candidate's map, if any, behind the linear inside a `with` block."""

    def mapped(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        weight, bias = (values[name].to(output.dtype) if name in values else None for name in ("weight", "bias"))
        assert weight is not None
        return F.linear(output, weight, bias)

    if candidate.fold is None:
        yield
        return
    with removed_after(get_module(model, candidate.fold.into).register_forward_hook(mapped)):
        yield


def _without_map(candidate: Candidate) -> Candidate:
    return candidate if candidate.fold is None else replace(candidate, fold=None, values={})
