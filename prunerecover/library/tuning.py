"""Tuning of a choice: all fitted values are learnt together, towards the dense output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.calibration.learning import Held, dense_outputs, tuned_on_output
from prunerecover.divergence.kept_outputs import KeptOutputs
from prunerecover.divergence.outputs import tensors_of
from prunerecover.library.edits import Chosen, EditMaker
from prunerecover.library.scoring import Scorer
from prunerecover.model.batches import ModelInputs, of_few_samples
from prunerecover.model.checks import is_differentiable
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import ordinary_arithmetic
from prunerecover.model.paths import get_module
from prunerecover.surgery.apply_edits import apply_edits

EPOCHS = 4, 3  # without further samples, and with them
STEPS = 8  # in an epoch, at least
MOST = 1280  # outputs, such as of an image each: with fewer, further samples are taken
SAMPLES = 4, 16  # in a step: as many as leave so many steps, within these bounds
FEWEST = 32, 1024  # samples, or their outputs; with fewer, new outputs may diverge more than by least squares alone
RATES = (2e-2, 3e-3, 4e-4)  # first change of a weight in a step, relative to its size: the largest that helps is taken
BIAS = 4e-4  # likewise, of a bias
Key = tuple[str, str, str]  # site, path of the module ("" for the replacement), name of the parameter


@ordinary_arithmetic()
def tuned(
    model: nn.Module,
    maker: EditMaker,
    chosen: Chosen,
    batches: Sequence[ModelInputs],
    scorer: Scorer,
    further: Callable[[int], Sequence[ModelInputs]] = lambda _: (),
) -> tuple[Chosen, float]:
    """Return a choice with its fitted values tuned on the output, and its divergence on held-out samples.

    Networks bear steps of very different size: of each rate, from large to small, an epoch of `batches` is tried, and
    the first rate that helps goes on. The choice stays unchanged if there are too few samples, the output cannot be
    compared, the network takes no gradients, or no epoch is better than the start.

    Args:
        model: Dense network.
        maker: Maker of the edits of variants.
        chosen: Choice, fitted.
        batches: Samples for learning.
        scorer: Scorer that judges the epochs.
        further: Function from a number of samples to about so many further samples for learning.
    """
    before = scorer.divergence(chosen)
    if not (_values(chosen) and is_differentiable(model)):
        return chosen, before
    samples = sum(batch.n_samples for batch in batches)
    few = min(max(SAMPLES[0], samples // STEPS), SAMPLES[1])
    steps = of_few_samples(batches, few)
    each = _outputs(dense_outputs(model, steps[:1])) / steps[0].n_samples
    more = further(ceil((MOST - samples * each) / each)) if 0 < samples * each < MOST else ()
    samples += sum(batch.n_samples for batch in more)
    if samples < FEWEST[0] and samples * each < FEWEST[1]:
        return chosen, before
    check = len(steps)
    steps += of_few_samples(more, few)
    dense = dense_outputs(model, steps)
    for rate in RATES:
        found, divergence = _tuned_at(rate, model, maker, chosen, steps, dense, scorer, check)
        if found is not chosen:
            return found, divergence
    return chosen, before


def _outputs(dense: KeptOutputs) -> int:
    """Return the number of vectors in the first of the dense network's outputs, such as the logits of each token."""
    return sum(output[..., 0].numel() for output in tensors_of(dense.of(0)).values())


def _tuned_at(
    rate: float,
    model: nn.Module,
    maker: EditMaker,
    chosen: Chosen,
    steps: Sequence[ModelInputs],
    dense: KeptOutputs,
    scorer: Scorer,
    check: int,
) -> tuple[Chosen, float]:
    """Return a choice tuned at one rate, and its divergence; the choice itself where the first steps do not help."""
    network = share_copy(model).eval()
    apply_edits(network, *maker.edits(chosen))
    held = {key: _held(network, maker, key, value, rate) for key, value in _values(chosen).items()}

    def divergence() -> float:
        return scorer.divergence(_with(chosen, {key: one.value for key, one in held.items()}))

    values = list(held.values())
    epochs = EPOCHS[len(steps) > check]
    how: dict[str, Any] = {"epochs": epochs, "first": 1.0, "check": check, "what": "what was fitted"}
    found, best = tuned_on_output(network, values, steps, dense, divergence, **how)
    return (_with(chosen, dict(zip(held, best, strict=True))) if best else chosen), found


def _values(chosen: Chosen) -> dict[Key, Tensor]:
    """Return all fitted values of a choice."""
    found: dict[Key, Tensor] = {}
    for site, (_, fit) in chosen.items():
        for path, values in fit.modules.items():
            found |= {(site, path, name): value for name, value in values.items()}
        found |= {(site, "", name): value for name, value in fit.replacement.items()}
    return found


def _held(network: nn.Module, maker: EditMaker, key: Key, value: Tensor, rate: float) -> Held:
    """Return the learnt copy of a parameter, with steps relative to the size; the parameter takes gradients now."""
    site, path, name = key
    unit = maker.sites[site].unit
    assert path or unit is not None, "units alone have replacements"
    module = get_module(network, path or unit.name)  # type: ignore[union-attr]
    parameter = module.get_parameter(name)
    parameter.requires_grad_()
    size = float(value.float().square().mean().sqrt())
    step = rate * size if name == "weight" else BIAS * max(size, 1e-3)
    return Held(value.detach().to(parameter.device, torch.float32, copy=True), step, parameter)


def _with(chosen: Chosen, values: dict[Key, Tensor]) -> Chosen:
    """Return a choice with new fitted values."""
    found = {}
    for site, (variant, fit) in chosen.items():
        modules = {
            path: {name: values[site, path, name].detach().clone() for name in own} for path, own in fit.modules.items()
        }
        replacement = {name: values[site, "", name].detach().clone() for name in fit.replacement}
        found[site] = variant, replace(fit, modules=modules, replacement=replacement)
    return found
