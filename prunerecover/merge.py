"""Merge what became linear: two linears with no activation between them are one (d x 4d x d becomes d x d).

The norm's affine part and LayerScale fold in, and a block with both branches gone is taken out. Exact in evaluation mode;
dropout between the linears goes.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from prunerecover.edits import Config, Edit, Merge, Remove
from prunerecover.families import Block, FeedForward, describe
from prunerecover.families.renumber import config_edits
from prunerecover.folding import has_affine
from prunerecover.plan import Plan
from prunerecover.provenance import plan_for
from prunerecover.structure import get_module, unwrap
from prunerecover.surgery import apply_edits


def merge(model: nn.Module) -> Plan:
    """Merge every feed-forward and every fitted map that can be, in place.

    Returns:
        The edits that were made; without edits if there was nothing to merge.
    """
    model = unwrap(model)
    plan = plan_merge(model)
    apply_edits(model, plan.edits)
    return plan


def plan_merge(model: nn.Module) -> Plan:
    """Decide what `merge` would do; the model is not changed."""
    layout = describe(model)
    edits: list[Edit] = [edit for block in layout.blocks for edit in _merge_feed_forward(model, block.feed_forward)]
    empty = [i for i, block in enumerate(layout.blocks) if _is_empty(get_module(model, block.path), block)]
    return plan_for(model, (*edits, *take_out_blocks(model, empty)), method="merge")


def _merge_feed_forward(model: nn.Module, forward: FeedForward | None) -> list[Edit]:
    if forward is None or forward.state == "nonlinear":
        return []
    norm = forward.norm if forward.norm and has_affine(get_module(model, forward.norm)) else None
    scale = forward.scale
    if forward.state == "merged":
        return [Merge(into=forward.first, from_=(forward.first,), norm=norm, scale=scale)] if norm or scale else []
    sources = (forward.first, forward.activation, *forward.between, forward.second)
    return [Merge(into=forward.first, from_=sources, norm=norm, scale=scale)]


def _is_empty(module: nn.Module, block: Block) -> bool:
    gone = block.attention is None and block.mlp is None
    return gone and not any(True for _ in module.parameters())


def take_out_blocks(model: nn.Module, indices: Sequence[int]) -> list[Edit]:
    """Return the edits that take whole blocks out, the last first, and keep a transformers config standard."""
    layout = describe(model)
    depth = len(layout.blocks)
    removals: list[Edit] = [Remove(unit=f"{layout.container}.{i}", kind="block") for i in sorted(indices, reverse=True)]
    if not removals or len(removals) == depth:
        return []
    config = config_edits(model, [i for i in range(depth) if i not in set(indices)])
    return [*removals, Config(set=config)] if config else removals
