"""Tuning of a choice: all fitted values are learnt together, towards the dense output."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from torch import Tensor, nn

from prunerecover.calibration.learning import tuned_parameters
from prunerecover.calibration.steps import steps_of
from prunerecover.library.edits import Chosen, EditMaker, Fit
from prunerecover.library.walk import fitted_in_order
from prunerecover.model.checks import is_differentiable
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import ordinary_arithmetic
from prunerecover.model.paths import get_module
from prunerecover.plan.edits import Bypass, Replace
from prunerecover.session.session import Session
from prunerecover.store.ranks import Spread, by_itself
from prunerecover.surgery.apply_edits import apply_edits

Key = tuple[str, str, str]  # site, path of the module ("" for the replacement), name of the parameter


@ordinary_arithmetic()
def tuned(session: Session, maker: EditMaker, chosen: Chosen, spread: Spread = by_itself) -> Chosen:
    """Return a choice with its fitted values tuned on the output.

    The values stay unchanged if there are too few samples, the output cannot be compared, the network takes no
    gradients, or no epoch is better than the start.

    Args:
        session: Dense network, and samples for learning.
        maker: Maker of the edits of variants.
        chosen: Choice, fitted.
        spread: Sharing of the parts of each step among ranks; see `Spread`.
    """
    model, samples = session.model, session.samples
    chosen = _in_edits(maker, fitted_in_order(model, maker, chosen, samples.fit, narrowed=True))
    values = _values(chosen)
    if not (values and session.output.comparable and is_differentiable(model)):
        return chosen
    steps = steps_of(model, samples.fit, samples.further)
    if not steps.enough:
        return chosen
    network = share_copy(model).eval()
    apply_edits(network, *maker.edits(chosen))
    parameters = {key: _parameter(network, maker, chosen, key) for key in values}

    def divergence() -> float:
        """Return the first rank's divergence: all ranks take the same steps."""
        return spread("divergence", 1, lambda _: session.output.divergence_of(network))[0]

    if not isfinite(divergence()):
        return chosen
    best = tuned_parameters(network, parameters, values, steps, divergence, lambda key: key[2] == "bias", spread)
    return _with(chosen, best) if best else chosen


def _in_edits(maker: EditMaker, chosen: Chosen) -> Chosen:
    """Return a choice with the replacements in its edits alone: beside narrowed layers, some units leave none."""
    placed = {edit.unit for edit in maker.edits(chosen)[0] if isinstance(edit, Bypass | Replace) and edit.tensors}
    return {
        site: (variant, fit if fit.stand_in is None or site in placed else replace(fit, stand_in=None))
        for site, (variant, fit) in chosen.items()
    }


def _values(chosen: Chosen) -> dict[Key, Tensor]:
    """Return all fitted values of a choice."""
    found: dict[Key, Tensor] = {}
    for site, (_, fit) in chosen.items():
        for path, values in fit.modules.items():
            found |= {(site, path, name): value for name, value in values.items()}
        replacement = fit.replacement if fit.stand_in is None else fit.stand_in.values
        found |= {(site, "", name): value for name, value in replacement.items()}
    return found


def _parameter(network: nn.Module, maker: EditMaker, chosen: Chosen, key: Key) -> nn.Parameter:
    """Return the parameter of a key in the pruned network."""
    site, path, name = key
    unit, stand_in = maker.sites[site].unit, chosen[site][1].stand_in
    assert path or unit is not None, "units alone have replacements"
    at = path or (unit.name if stand_in is None else stand_in.place.path)  # type: ignore[union-attr]
    return get_module(network, at).get_parameter(name)


def _with(chosen: Chosen, values: dict[Key, Tensor]) -> Chosen:
    """Return a choice with new fitted values."""
    found = {}
    for site, (variant, fit) in chosen.items():
        modules = {
            path: {name: values[site, path, name].detach().clone() for name in own} for path, own in fit.modules.items()
        }
        replacement = {name: values[site, "", name].detach().clone() for name in fit.replacement}
        stand_in = fit.stand_in
        if stand_in is not None:
            own = {name: values[site, "", name].detach().clone() for name in stand_in.values}
            stand_in = replace(stand_in, values=own)
        found[site] = variant, Fit(modules, replacement, stand_in)
    return found
