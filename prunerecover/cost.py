"""How much of a model's cost goes with some edits, measured on a merged copy."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from prunerecover.batches import ModelInputs
from prunerecover.copies import meta_copy, twin_of
from prunerecover.edits import Edit
from prunerecover.latency import latency_ratio
from prunerecover.macs import count_macs
from prunerecover.merge import merge_edits
from prunerecover.surgery import apply_edits

PAIRS = 30


def removed_share(model: nn.Module, edits: Sequence[Edit], cost: str, example: ModelInputs, seed: int = 0) -> float:
    """Return the share of `cost` ("macs", "params" or "latency") that goes; the model is not changed.

    Args:
        model: Unwrapped.
        edits: In order, without fitted tensors: values do not change the cost.
        cost: Latency is measured on the model's device, as the median of interleaved pairs.
        example: One batch.
        seed: Of the latency's bootstrap.
    """
    copy = meta_copy(model) if cost == "params" else twin_of(model)  # GPT-2's forward pass reads its input: not on meta
    apply_edits(copy, edits)
    apply_edits(copy, merge_edits(copy))
    if cost == "latency":
        return 1 - latency_ratio(model, copy, example, pairs=PAIRS, seed=seed).ratio.value
    if cost == "macs":
        return 1 - count_macs(copy, example) / count_macs(model, example)
    return 1 - _params(copy) / _params(model)


def _params(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
