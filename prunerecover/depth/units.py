"""Units: the smallest things that can be removed alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from prunerecover.cost.macs import macs_by_module
from prunerecover.families.describe import describe
from prunerecover.families.layout import Block, FeedForward
from prunerecover.model.linears import check_plain, linear_shape
from prunerecover.model.paths import get_module, unwrap
from prunerecover.plan.kinds import DEPTH_KINDS, Kind
from prunerecover.plan.units import Unit


def find_units(model: nn.Module, kinds: Sequence[str] = DEPTH_KINDS, example_inputs: Any = None) -> tuple[Unit, ...]:
    """List the units of a supported model that are still there, in order of depth.

    Args:
        model: A timm VisionTransformer or a transformers model (Llama, Mistral, Qwen2, Qwen3, GPT-2, OPT, BERT, ViT).
        kinds: Among "block", "attention", "mlp", "activation".
        example_inputs: One batch, to count the MACs of each unit; None leaves them 0.

    Raises:
        ValueError: If the model is of no supported family, a kind is unknown, or the family has no unit of a kind
            (gated feed-forwards have no removable activation; the message says why), or if linears around an activation
            compute their weights (masks, weight norm, parametrizations).

    >>> import timm
    >>> vit = timm.create_model("vit_tiny_patch16_224", depth=2)
    >>> [unit.name for unit in find_units(vit, kinds=("attention", "activation"))]
    ['blocks.0.attn', 'blocks.0.mlp.act', 'blocks.1.attn', 'blocks.1.mlp.act']
    """
    for kind in kinds:
        if kind not in DEPTH_KINDS:
            raise ValueError(f"Expected kinds among {', '.join(DEPTH_KINDS)}, but got '{kind}'.")
    model = unwrap(model)
    layout = describe(model)
    macs = {} if example_inputs is None else macs_by_module(model, example_inputs)
    units = [u for block in layout.blocks for u in _units_of(model, block, macs, kinds)]
    if tuple(kinds) != DEPTH_KINDS:
        _explain_missing_activations(kinds, layout.blocks, layout.family)
    return tuple(units)


def _units_of(model: nn.Module, block: Block, macs: dict[str, int], kinds: Sequence[str]) -> list[Unit]:
    units = [_unit(model, block, block.path, "block", (block.path,), macs)]
    for branch in (block.attention, block.mlp):
        if branch is not None:
            norm = (branch.norm,) if branch.norm else ()
            units.append(_unit(model, block, branch.path, branch.kind, (*norm, branch.path, *branch.then), macs))
    forward = block.feed_forward
    if forward is not None and forward.state == "nonlinear" and "activation" in kinds:
        units.append(_activation(model, block, forward, macs))
    return [unit for unit in units if unit.kind in kinds]


def _unit(
    model: nn.Module, block: Block, name: str, kind: Kind, targets: tuple[str, ...], macs: dict[str, int]
) -> Unit:
    params = sum(p.numel() for p in {p for path in targets for p in get_module(model, path).parameters()})
    return Unit(name, kind, targets, params, sum(macs.get(path, 0) for path in targets), block.path)


def _activation(model: nn.Module, block: Block, forward: FeedForward, macs: dict[str, int]) -> Unit:
    for path in (forward.first, forward.second):
        check_plain(path, get_module(model, path))
    both = _unit(model, block, forward.activation, "activation", (forward.first, forward.second), macs)
    width, hidden = linear_shape(get_module(model, forward.first))
    merged_macs = macs.get(forward.first, 0) // hidden * width
    return Unit(
        forward.activation,
        "activation",
        (forward.activation,),
        both.params - width * width - width,
        both.macs - merged_macs,
        block.path,
    )


def _explain_missing_activations(kinds: Sequence[str], blocks: Sequence[Block], family: str) -> None:
    if "activation" not in kinds or any(block.feed_forward is not None for block in blocks):
        return
    reasons = {block.no_activation for block in blocks if block.mlp is not None}
    if len(reasons) == 1 and "" not in reasons:
        raise ValueError(
            f"Expected {family} to have removable activations, but {reasons.pop()}. Use 'attention' or 'mlp'."
        )
