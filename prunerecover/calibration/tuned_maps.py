"""Tune the maps that stand for removed runs of blocks on the network's output.

Least squares (`run_maps`) makes the residual stream behind a run alike in every direction; the rest of the network
reads some directions and not others. From that solution on, Adam (Kingma and Ba, arXiv 1412.6980) minimises the output
divergence on the samples that maps are fitted on, as distillation without labels. Of all epochs the one is kept that is
best on held-out samples; that may be none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prunerecover.calibration.candidates import Candidate, Choice
from prunerecover.calibration.divergence import output_divergence
from prunerecover.calibration.held_out import HeldOut
from prunerecover.calibration.hidden_states import DenseOutputs, Hidden, moved_on
from prunerecover.calibration.in_place import in_place
from prunerecover.display.progress import progress
from prunerecover.families.layout import Layout
from prunerecover.model.batches import CalibrationSet, without_padding
from prunerecover.model.block_runner import BlockRunner
from prunerecover.model.checks import is_differentiable
from prunerecover.model.paths import get_module

EPOCHS = 6
RATE = 0.17  # of Adam, per width: an entry's step, of which an output sums up as many as there are inputs
Values = Mapping[str, Tensor]


def tuned_maps(
    runner: BlockRunner,
    dense: BlockRunner,
    layout: Layout,
    samples: CalibrationSet,
    held_out: HeldOut,
    choices: Sequence[Choice],
) -> list[Choice]:
    """Return choices whose maps change the network's output least, the last one with the divergence of all of them.

    Choices without a map leave what they left. Nothing changes where none has one, or the model takes no gradients.

    Args:
        runner: Of the model, in evaluation mode. Its weights take gradients.
        dense: Of the dense model.
        layout: Of the dense model.
        samples: Those of `fit` are learnt from.
        held_out: Judges what was learnt.
        choices: All that goes.
    """
    places = [i for i, choice in enumerate(choices) if choice.candidate.fold is not None]
    if not places or not is_differentiable(runner.model):
        return list(choices)
    maps = [_learnable(choices[i].candidate) for i in places]
    into = [_into(choices[i].candidate) for i in places]
    with ExitStack() as stack:
        for choice in choices:
            stack.enter_context(in_place(runner, layout, _without_map(choice.candidate)))
        start = min(layout.block_of(path) for path in into)
        states = [_entering(runner, start, batches) for batches in (samples.fit, samples.held_out)]
        stack.enter_context(_mapped(runner.model, into, maps))
        divergence, found = _learnt(runner, DenseOutputs(dense, samples.fit), samples, held_out, start, states, maps)
    tuned = [*choices[:-1], replace(choices[-1], divergence=divergence)]
    for i, values in zip(places, found, strict=True):
        candidate = choices[i].candidate
        own = {name: values[name].to(candidate.values[name]) for name in candidate.values}
        tuned[i] = replace(tuned[i], candidate=replace(candidate, values=own))
    return tuned


def _learnt(
    runner: BlockRunner,
    dense: DenseOutputs,
    samples: CalibrationSet,
    held_out: HeldOut,
    start: int,
    states: Sequence[Hidden],
    maps: Sequence[Values],
) -> tuple[float, list[dict[str, Tensor]]]:
    """Return the divergence on held-out samples and the maps of the best epoch.

    Args:
        runner: Of the model without the runs, with the maps in place.
        dense: Outputs on the samples that are learnt from.
        samples: Calibration samples.
        held_out: Judges.
        start: The block before the first run.
        states: What enters it on samples that are learnt from, and on held-out ones.
        maps: Learnt in place.
    """
    learnt = [value for values in maps for value in values.values()]
    optimizer = torch.optim.Adam(learnt, RATE / learnt[0].shape[-1])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(samples.fit))
    best, kept = held_out.divergence(start, states[1]), _copied(maps)
    with progress("tuning what runs of blocks leave", EPOCHS) as advance:
        for _ in range(EPOCHS):
            for number, (batch, state) in enumerate(zip(samples.fit, states[0], strict=True)):
                with torch.enable_grad():
                    output = without_padding(runner.finish(batch, start, state), batch)
                    loss = output_divergence(dense.of(number), output)
                    gradients = torch.autograd.grad(loss, learnt)
                for value, gradient in zip(learnt, gradients, strict=True):
                    value.grad = gradient
                optimizer.step()
                scheduler.step()
            divergence = held_out.divergence(start, states[1])
            if divergence < best:
                best, kept = divergence, _copied(maps)
            advance()
    return best, kept


def _entering(runner: BlockRunner, start: int, batches: Sequence[Any]) -> Hidden:
    nothing: Hidden = [None] * len(batches)
    return moved_on(runner, batches, 0, start, nothing, [])


@contextmanager
def _mapped(model: nn.Module, into: Sequence[str], maps: Sequence[Values]) -> Iterator[None]:
    """Have maps behind linears inside a `with` block."""

    def behind(values: Values) -> Any:
        def mapped(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            weight, bias = (values[name].to(output.dtype) if name in values else None for name in ("weight", "bias"))
            assert weight is not None
            return F.linear(output, weight, bias)

        return mapped

    handles = [
        get_module(model, path).register_forward_hook(behind(values)) for path, values in zip(into, maps, strict=True)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _into(candidate: Candidate) -> str:
    assert candidate.fold is not None
    return candidate.fold.into


def _learnable(candidate: Candidate) -> dict[str, Tensor]:
    return {name: value.detach().float().clone().requires_grad_() for name, value in candidate.values.items()}


def _copied(maps: Sequence[Values]) -> list[dict[str, Tensor]]:
    return [{name: value.detach().clone() for name, value in values.items()} for values in maps]


def _without_map(candidate: Candidate) -> Candidate:
    return candidate if candidate.fold is None else replace(candidate, fold=None, values={})
