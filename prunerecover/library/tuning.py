"""Tuning of a choice: all fitted values are learnt together, towards the dense output."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from prunerecover.calibration.learning import tuned_parameters
from prunerecover.calibration.samples import CalibrationSet
from prunerecover.calibration.steps import steps_of
from prunerecover.library.edits import Chosen, EditMaker
from prunerecover.library.scoring import Scorer
from prunerecover.model.checks import is_differentiable
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import ordinary_arithmetic
from prunerecover.model.paths import get_module
from prunerecover.surgery.apply_edits import apply_edits

Key = tuple[str, str, str]  # site, path of the module ("" for the replacement), name of the parameter


@ordinary_arithmetic()
def tuned(model: nn.Module, maker: EditMaker, chosen: Chosen, samples: CalibrationSet, scorer: Scorer) -> Chosen:
    """Return a choice with its fitted values tuned on the output.

    The choice stays unchanged if there are too few samples, the output cannot be compared, the network takes no
    gradients, or no epoch is better than the start.

    Args:
        model: Dense network.
        maker: Maker of the edits of variants.
        chosen: Choice, fitted.
        samples: Samples for learning.
        scorer: Scorer that judges the epochs.
    """
    values = _values(chosen)
    if not (values and is_differentiable(model)):
        return chosen
    steps = steps_of(model, samples.fit, samples.further)
    if not steps.enough:
        return chosen
    network = share_copy(model).eval()
    apply_edits(network, *maker.edits(chosen))
    parameters = {key: _parameter(network, maker, key) for key in values}

    def divergence(present: dict[Key, Tensor]) -> float:
        return scorer.divergence(_with(chosen, present))

    best = tuned_parameters(network, parameters, values, steps, divergence, lambda key: key[2] == "bias")
    return _with(chosen, best) if best else chosen


def _values(chosen: Chosen) -> dict[Key, Tensor]:
    """Return all fitted values of a choice."""
    found: dict[Key, Tensor] = {}
    for site, (_, fit) in chosen.items():
        for path, values in fit.modules.items():
            found |= {(site, path, name): value for name, value in values.items()}
        found |= {(site, "", name): value for name, value in fit.replacement.items()}
    return found


def _parameter(network: nn.Module, maker: EditMaker, key: Key) -> nn.Parameter:
    """Return the parameter of a key in the pruned network."""
    site, path, name = key
    unit = maker.sites[site].unit
    assert path or unit is not None, "units alone have replacements"
    return get_module(network, path or unit.name).get_parameter(name)  # type: ignore[union-attr]


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
