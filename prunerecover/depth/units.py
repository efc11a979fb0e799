"""Units: the smallest things that can be removed alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import nn

from prunerecover.cost.macs import macs_by_module
from prunerecover.depth.arguments import check_kinds, known_by_parts
from prunerecover.depth.family.units import explain_missing_activations, family_units
from prunerecover.depth.layers.removals import Removals
from prunerecover.families.describe import describe
from prunerecover.model.batches import ModelInputs, as_inputs, without_labels
from prunerecover.model.checks import check_call, check_watchable, computed_in
from prunerecover.model.evaluation import device_of, evaluating, ordinary_arithmetic, uncompiled
from prunerecover.model.paths import unwrap
from prunerecover.plan.kinds import DEPTH_KINDS, FAMILY_KINDS
from prunerecover.plan.units import Units
from prunerecover.refusal import Refusal


@ordinary_arithmetic()
def find_units(
    model: nn.Module,
    kinds: str | Sequence[str] = FAMILY_KINDS,
    example_inputs: Any = None,
    *,
    include_strided: bool = False,
) -> Units:
    """List the units of a model that are still there, in order of depth, and why others are none (`Units.refused`).

    Supported families (see the support matrix) are known by their parts. Of all others one forward pass is watched: a
    branch whose output is added to a stream of its shape is an attention or an MLP, a repeated child of one container
    that hands on a stream of one shape is a block, and a linear or convolution outside attentions and the head is a
    layer.

    Args:
        model: Any module, wrapped or not, on any device; it is bit-identical afterwards.
        kinds: Among "block", "attention", "mlp", "activation" and "layer".
        example_inputs: One batch, as calibration batches are; also to count the MACs of each unit, which are 0 without.
            Only a supported family, without layers, needs none; models that bring `dummy_inputs` use these.
        include_strided: Whether layers that change spatial dimensions are listed, too: a pooling takes their place.

    Raises:
        ValueError: If a kind is unknown, if activations alone are asked of a family that has none (gated feed-forwards
            do not), if an example is needed or the model cannot run it, or if linears around an activation compute
            their weights (masks, weight norm, parametrizations).

    >>> import timm
    >>> vit = timm.create_model("vit_tiny_patch16_224", depth=2)
    >>> [unit.name for unit in find_units(vit, kinds=("attention", "activation"))]
    ['blocks.0.attn', 'blocks.0.mlp.act', 'blocks.1.attn', 'blocks.1.mlp.act']
    """
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    check_kinds(kinds)
    model = unwrap(model)
    if known_by_parts(model, kinds):
        macs = {} if example_inputs is None else macs_by_module(model, without_labels(example_inputs, model))
        units = family_units(model, kinds, macs)
        if kinds != FAMILY_KINDS and "activation" in kinds:
            explain_missing_activations(model)
        return Units(units)
    example = _example(model, example_inputs)
    if example is None:
        describe(model)  # says which families are supported
        raise ValueError(
            f"Expected example_inputs, one batch, to find the layers of {type(model).__name__}, but got none. Pass a "
            "batch as your loader gives it."
        )
    with uncompiled(), evaluating(model):
        removals = Removals(model, example, kinds, include_strided=include_strided)
    return Units(removals.units, removals.refused)


def _example(model: nn.Module, given: Any) -> ModelInputs | None:
    """Return one sample of the example, or of the inputs that the model brings itself."""
    if given is None:
        given = getattr(model, "dummy_inputs", None)
    if given is None:
        return None
    inputs = as_inputs(without_labels(given, model)).to(device_of(model))
    check_watchable(model)
    with evaluating(model), uncompiled():
        check_call(model, inputs, "example_inputs")
    return inputs


def of_all_kinds(removals: Removals) -> Removals:
    """Return what can go out of the same network by units of any kind; the network is traced anew for more kinds."""
    if set(removals.kinds) >= set(DEPTH_KINDS):
        return removals
    return Removals(removals.model, removals.example, DEPTH_KINDS)


def nothing_found(removals: Removals, kinds: Sequence[str]) -> Refusal:
    """Return what says that a network has no unit that may go.

    Args:
        removals: Without units.
        kinds: That were looked for.
    """
    why = "; ".join(f"'{path}': {reason}" for path, reason in list(removals.refused.items())[:3])
    others = Counter(unit.kind for unit in of_all_kinds(removals).units)
    instead = f"It has others: {', '.join(f'{n} of kind {kind}' for kind, n in others.items())}. " if others else ""
    _, made_plain = computed_in(removals.model)
    plain = f"{made_plain} " if made_plain else ""
    return Refusal(
        f"{type(removals.model).__name__} to have units of kind {', '.join(kinds)} that may go",
        f"there is none{f' ({why})' if why else ''}",
        f"{plain}{instead}Channels, heads and neurons are narrowed by plan_width and WidthPrune.",
    )
