"""Removal of whole blocks from the list of a transformers model, where transformers can reload the rest.

The computation graph bypasses a block: an identity stays in the block's place, and no config describes an identity.
Where a config holds the length of the list of blocks (an encoder's and a decoder's, too), blocks can go as in the
supported families, and the config and the numbers of the layers behind follow. A trial decides whether the rest is a
standard model: a model built from the config must have the same settings, names and shapes; and the rest must compute
the same as with bypasses, and run with a cache if the network did (transformers' caches of linear attentions alone do
not count positions).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from prunerecover.families.constructors import constructor_of
from prunerecover.families.transformers_layers import read_stacks
from prunerecover.model.batches import ModelInputs, call, predictions_of
from prunerecover.model.copies import share_copy
from prunerecover.model.evaluation import evaluating
from prunerecover.model.key_values import asking_for_cache
from prunerecover.plan.edits import Bypass, Edit
from prunerecover.surgery.apply_edits import apply_edits
from prunerecover.surgery.merging import removals_of


def with_blocks_taken_out(model: nn.Module, example: ModelInputs, edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """Return edits with removals of blocks in the place of bypasses, or the same edits if impossible.

    Args:
        model: Unwrapped model in evaluation mode; never changed.
        example: A sample on the model's device.
        edits: Edits of the computation graph.
    """
    blocks = {block.path for stack in read_stacks(model) for block in stack.blocks}
    bypassed = [e for e in edits if isinstance(e, Bypass) and e.unit in blocks and set(e.modules) == {e.unit}]
    if not bypassed:
        return tuple(edits)
    try:
        removals = removals_of(model, [edit.unit for edit in bypassed])
        standard = _is_standard(model, example, bypassed, removals)
        taken = (*(edit for edit in edits if edit not in bypassed), *removals)
        apply_edits(share_copy(model), taken)
    except Exception:  # the model computes with numbers of layers, or the rest has no block to show the list
        return tuple(edits)
    return taken if standard else tuple(edits)


def _is_standard(model: nn.Module, example: ModelInputs, bypassed: Sequence[Edit], removals: Sequence[Edit]) -> bool:
    pruned = share_copy(model)
    apply_edits(pruned, removals)
    if constructor_of(pruned) is None or not _has_slots(pruned):
        return False
    if _runs_with_cache(model, example) and not _runs_with_cache(pruned, example):
        return False
    other = share_copy(model)
    apply_edits(other, bypassed)
    return torch.allclose(_output(pruned, example), _output(other, example), rtol=1e-3, atol=1e-5)


def _has_slots(model: nn.Module) -> bool:
    """Whether generation finds a place in the cache for each block: transformers counts T5's by the encoder."""
    stacks = read_stacks(model)
    if len(stacks) < 2:
        return True
    config: Any = model.config
    return len(stacks[-1].blocks) <= getattr(config.get_text_config(decoder=True), "num_hidden_layers", 0)


def _runs_with_cache(model: nn.Module, example: ModelInputs) -> bool:
    """Whether the network takes an example while keeping keys, values and states for a next call."""
    keeping = asking_for_cache(model, example)
    if keeping is None:
        return False
    try:
        _output(model, keeping)
    except Exception:  # whatever the network's own code raises
        return False
    return True


def _output(model: nn.Module, example: ModelInputs) -> Tensor:
    with evaluating(model):
        return predictions_of(call(model, example))
