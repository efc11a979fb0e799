"""Tune what removed units leave on the network's output.

Least squares makes the residual stream behind a unit alike in every direction; the rest of the network reads some
directions and not others. From that solution on, Adam (Kingma and Ba, arXiv 1412.6980) minimises the output divergence
on the samples that stand-ins are fitted on, all of them together, as distillation without labels. Of all epochs the one
is kept that is best on held-out samples; none, if it is clearly worse there than what was solved. Units and forms were
chosen on these samples, so that what is learnt looks a little worse on them than it is.
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
from prunerecover.display.progress import progress
from prunerecover.divergence.outputs import compared, unpadded
from prunerecover.divergence.registry import output_divergence
from prunerecover.families.layout import Layout
from prunerecover.model.batches import CalibrationSet, ModelInputs, of_few_samples
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.checks import is_differentiable
from prunerecover.model.hooks import removed_after
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Replace

EPOCHS = 4
SAMPLES = 4  # of a step at most: a few large steps bring nothing where much goes
WORSE = 1.1  # times what was solved, which what is learnt may cost on held-out samples
MAP = 0.17  # Adam's rate for a folded map, per width: an output sums up as many steps as there are inputs
AFFINE, SLOPE, BIAS = 0.8, 0.08, 0.02  # over all steps; for an affine map's weight, per width too, and single numbers


@dataclass(frozen=True)
class _Learnt:
    """What is learnt of one choice.

    Attributes:
        place: Of the choice.
        values: By name, in single precision.
        held: The parameters of the model that are kept equal to them; empty for a map that is folded elsewhere.
        rates: Adam's, by name.
    """

    place: int
    values: dict[str, Tensor]
    held: dict[str, nn.Parameter]
    rates: dict[str, float]

    @property
    def sources(self) -> list[Tensor]:
        """What gradients are taken of."""
        return [self.held.get(name, value) for name, value in self.values.items()]

    def groups(self) -> list[dict[str, Any]]:
        """Return the values as an optimizer takes them, each with its rate."""
        return [{"params": [value], "lr": self.rates[name]} for name, value in self.values.items()]

    @torch.no_grad()
    def put_in_place(self) -> None:
        """Have the model's parameters hold the values."""
        for name, parameter in self.held.items():
            parameter.copy_(self.values[name])

    def copied(self) -> dict[str, Tensor]:
        """Return the values as they are."""
        return {name: value.detach().clone() for name, value in self.values.items()}


@dataclass(frozen=True)
class _Lesson:
    """What values are learnt from, and judged by.

    Attributes:
        runner: Of the model with all stand-ins in place.
        dense: Outputs on the batches.
        batches: What is learnt from, a step each.
        held_out: Judges.
        start: The first block that changes.
        states: What enters it on the batches, and on held-out samples.
    """

    runner: BlockRunner
    dense: DenseOutputs
    batches: Sequence[ModelInputs]
    held_out: HeldOut
    start: int
    states: tuple[Hidden, Hidden]

    def learn(self, learnt: Sequence[_Learnt]) -> tuple[float, list[dict[str, Tensor]]]:
        """Return the values of the best epoch, or those before, and their divergence on held-out samples."""
        optimizer = torch.optim.Adam([group for one in learnt for group in one.groups()])
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(self.batches))
        found, kept = self.divergence(), [one.copied() for one in learnt]
        limit = WORSE * found
        with progress("tuning what removed units leave", EPOCHS) as advance:
            for _ in range(EPOCHS):
                for number in range(len(self.batches)):
                    self.set_gradients(number, learnt)
                    optimizer.step()
                    scheduler.step()
                    for one in learnt:
                        one.put_in_place()
                divergence = self.divergence()
                if divergence < limit:
                    found = limit = divergence
                    kept = [one.copied() for one in learnt]
                advance()
        return found, kept

    def divergence(self) -> float:
        """Return what is lost on held-out samples."""
        return self.held_out.divergence(self.start, self.states[1])

    def set_gradients(self, number: int, learnt: Sequence[_Learnt]) -> None:
        """Give all values the gradients of the loss on one batch."""
        batch = self.batches[number]
        with torch.enable_grad():
            output = unpadded(self.runner.finish(batch, self.start, self.states[0][number], compared), batch)
            loss = output_divergence(self.dense.of(number), output)
            sources = [source for one in learnt for source in one.sources]
            gradients = torch.autograd.grad(loss, sources, materialize_grads=True)
        for value, gradient in zip([v for one in learnt for v in one.values.values()], gradients, strict=True):
            value.grad = gradient.float()


def tuned(
    runner: BlockRunner,
    dense: BlockRunner,
    layout: Layout,
    samples: CalibrationSet,
    held_out: HeldOut,
    choices: Sequence[Choice],
) -> list[Choice]:
    """Return choices with what was fitted tuned, the last one with the divergence of all of them.

    Nothing changes where nothing was fitted, or the model takes no gradients.

    Args:
        runner: Of the model, in evaluation mode. Its weights take gradients.
        dense: Of the dense model.
        layout: Of the dense model.
        samples: Those of `fit` are learnt from.
        held_out: Judges what was learnt.
        choices: All that goes.
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
        learnt = [_learnable(runner.model, layout, i, choices[i].candidate, steps) for i in places]
        for one in learnt:
            stack.enter_context(_folded(runner.model, choices[one.place].candidate, one.values))
        lesson = _Lesson(runner, DenseOutputs(dense, samples.fit), samples.fit, held_out, start, states)
        divergence, found = lesson.learn(learnt)
    better = [*choices[:-1], replace(choices[-1], divergence=divergence)]
    for one, values in zip(learnt, found, strict=True):
        candidate = choices[one.place].candidate
        own = {name: values[name].to(value) for name, value in candidate.values.items()}
        better[one.place] = replace(better[one.place], candidate=replace(candidate, values=own))
    return better


def _entering(runner: BlockRunner, start: int, batches: Sequence[Any]) -> Hidden:
    nothing: Hidden = [None] * len(batches)
    return moved_on(runner, batches, 0, start, nothing, [])


def _learnable(model: nn.Module, layout: Layout, place: int, candidate: Candidate, steps: int) -> _Learnt:
    """Return what is learnt of a candidate that is in the model, its map apart, in so many steps."""
    values = {name: value.detach().float().clone().requires_grad_() for name, value in candidate.values.items()}
    width = max((value.shape[-1] for value in values.values() if value.ndim > 1), default=1)
    if candidate.fold is not None:
        return _Learnt(place, values, {}, dict.fromkeys(values, MAP / width))
    module = get_module(model, _path_of(layout, candidate))
    held = {name: module.get_parameter(name) for name in values}
    for parameter in held.values():
        parameter.requires_grad_()
    rates = {"weight": AFFINE / width, "slope": SLOPE, "bias": BIAS}
    return _Learnt(place, values, held, {name: rates[name] / steps for name in values})


def _path_of(layout: Layout, candidate: Candidate) -> str:
    """Return where the module that holds a candidate's values is in the model."""
    edit = candidate.edit
    assert isinstance(edit, Replace)
    forward = layout.blocks[layout.block_of(edit.unit)].feed_forward
    whole = edit.kind == "activation" and edit.leaves == "affine"
    return forward.first if whole and forward is not None else edit.unit


@contextmanager
def _folded(model: nn.Module, candidate: Candidate, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Have a candidate's map, if it has one, behind the linear that it is folded into, inside a `with` block."""

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
